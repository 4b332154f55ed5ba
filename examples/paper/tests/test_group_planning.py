"""Which runs are made together."""

from collections import Counter
from dataclasses import replace

import pytest
from paper_runs import DIGITS, SHARING, request

from gelu_paper.errors import PaperArgumentError
from gelu_paper.group_planning import GroupPlanner, parse_replicas
from gelu_paper.jobs import CellGroup, cells_of
from gelu_paper.planning import RunRequest
from gelu_paper.protocol.variants import ProtocolVariant, own_experiments

FULL = RunRequest("full")


def planned(name, workers, most=None, **filters):
    """Return the jobs of an experiment of the full preset."""
    wanted = RunRequest("full", only=(name,), **filters)
    cells = wanted.first_cells()
    jobs = GroupPlanner(workers, most).jobs(cells)
    assert Counter(cell.key for job in jobs for cell in cells_of(job)) == Counter(cell.key for cell in cells)
    return jobs


@pytest.mark.parametrize(
    ("name", "workers", "most", "sizes"),
    [
        ("mnist", 2, None, [15] * 8),
        ("mnist", 4, None, [15] * 8),
        ("mnist", 1, None, [17, 17, 17, 17, 17, 17, 18]),
        ("mnist", 40, None, [3] * 40),
        ("mnist", 2, 30, [30] * 4),
        ("tweets", 2, None, [15] * 4),
        ("tweets", 1, 1, [1] * 60),
        ("autoencoder", 2, None, [6] * 4),
        ("timit", 2, None, [1] * 45),
        ("timit", 2, 10, [1] * 45),
        ("cifar100", 2, 3, [1] * 9),
    ],
)
def test_sizes(name, workers, most, sizes):
    assert sorted(len(cells_of(job)) for job in planned(name, workers, most)) == sizes


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "keyed", "sizes"),
    [
        ("mnist", True, [120]),
        ("mnist", False, [1] * 60 + [60]),  # those without dropout need no keys
        ("tweets", True, [60]),
        ("tweets", False, [1] * 60),
        ("autoencoder", True, [24]),
        ("mnist_zero_identity", True, None),
        ("timit", True, [1] * 45),
    ],
)
def test_sizes_on_a_gpu(name, keyed, sizes):
    table = own_experiments("full", ProtocolVariant(noise="keys" if keyed else "global"))
    cells = RunRequest("full", only=(name,), table=table).first_cells()
    jobs = GroupPlanner(1, on_gpu=True).jobs(cells)
    for job in jobs:
        if any("zero_identity" in cell.activation for cell in cells_of(job)):
            assert len(cells_of(job)) == 1
    assert sizes is None or sorted(len(cells_of(job)) for job in jobs) == sizes


def test_runs_with_dropout_are_by_themselves_where_groups_allow_it():
    for job in planned("mnist", 2):
        assert len({cell.setting["keep"] for cell in job.cells}) == 1
        activations = [cell.activation for cell in job.cells]
        assert activations == sorted(activations)  # each in one stretch


def test_on_a_gpu_runs_with_dropout_follow_those_without():
    table = own_experiments("full", ProtocolVariant(noise="keys"))
    (job,) = GroupPlanner(1, on_gpu=True).jobs(RunRequest("full", only=("mnist",), table=table).first_cells())
    keeps = [cell.setting["keep"] for cell in job.cells]
    assert keeps == sorted(keeps, reverse=True)
    assert len(set(keeps)) == 2


def test_what_differs_in_more_than_a_group_may_is_apart():
    other = replace(SHARING, name="wider", task_args={"hidden_layers": 2})
    longer = replace(SHARING, name="longer", epochs=3)
    seldom = replace(SHARING, name="seldom", evaluations=1)
    batches = replace(SHARING, name="batches", data_args={"batch_size": 64})
    momentum = replace(SHARING, name="momentum", task_args={"hidden_layers": 1, "momentum": 0.0})
    cells = request(DIGITS, other, longer, seldom, batches, momentum).first_cells()
    jobs = GroupPlanner(1).jobs(cells)
    assert [{cell.experiment for cell in job.cells} for job in jobs] == [
        {"digits"}, {"wider"}, {"longer"}, {"seldom"}, {"batches"}, {"momentum"},
    ]  # fmt: skip


def test_experiments_of_one_net_are_together():
    (job,) = GroupPlanner(1).jobs(request(DIGITS, replace(SHARING, seeds=1)).first_cells())
    assert {cell.experiment for cell in job.cells} == {"digits", "sharing"}


@pytest.mark.parametrize("change", [{"limit_train_batches": 5}, {"gradient_clip_val": 1.0}])
def test_trainers_that_no_group_can_have_train_one_run_at_a_time(change):
    jobs = GroupPlanner(1).jobs(request(replace(DIGITS, trainer_args=change)).first_cells())
    assert not any(isinstance(job, CellGroup) for job in jobs)


def test_a_group_is_named_by_what_it_trains_and_in_which_order():
    (one,), (other,) = (GroupPlanner(1).jobs(request(DIGITS).first_cells()) for _ in range(2))
    assert one.name == other.name
    assert one.name != CellGroup(one.cells[::-1]).name
    assert one.name != CellGroup(one.cells[1:]).name


def test_replicas_in_words():
    assert [parse_replicas(text) for text in ("auto", "off", "1", "24")] == [None, 1, 1, 24]
    for text in ("0", "-3", "on", "1.5", "", "²", "9" * 20):
        with pytest.raises(PaperArgumentError, match="accepted: auto, off, or how many"):
            parse_replicas(text)
