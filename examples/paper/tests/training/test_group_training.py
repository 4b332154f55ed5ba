"""Runs made together against the same runs alone: equal records, whatever group they are in."""

import math
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from file_limits import files_limited_to
from paper_runs import DIGITS, request, run
from replica_runs import batched_products_are_single_ones

from gelu_paper.group_planning import GroupPlanner
from gelu_paper.jobs import RunOptions
from gelu_paper.protocol.experiments import Arm
from gelu_paper.training.cell_training import DataCache, back_on
from gelu_paper.training.group_recorder import GroupRecorder
from gelu_paper.training.group_training import train_group
from lit_gelu.replicas import EagerExecutor, ReplicaGroup

ARMS = {"gelu": Arm("gelu_tanh"), "relu": Arm("relu"), "prelu": Arm("prelu")}
GRID = replace(DIGITS, arms=ARMS, learning_rates=(1e-2, 1e-3), seeds=2)
# Where a processor's library adds up a batch of products in another order, runs drift apart by rounding.
EXACT = batched_products_are_single_ones((784, 128, 10), 128)
TRAINING = ("train_loss", "train_error")


def comparable(record):
    """Return a record without what differs between two runs of the same, and apart from it the training curves."""
    plain = asdict(replace(record, started="", seconds=0.0, group=None))
    curves = {name: plain["curves"].pop(name) for name in TRAINING if name in plain["curves"]}
    curves["last"] = plain["result"].pop("last_train_loss")
    return plain, curves


def check_same_runs(records, expected):
    assert records.keys() == expected.keys()
    for key, record in records.items():
        (plain, training), (wanted, its) = comparable(record), comparable(expected[key])
        if EXACT:
            assert plain == wanted, key
        else:
            for name, curve in plain["curves"].items():
                assert curve["value"] == pytest.approx(wanted["curves"][name]["value"], rel=1e-2, abs=1e-2)
        assert training["train_loss"]["epoch"] == its["train_loss"]["epoch"]
        rounding = 1e-6 if EXACT else 1e-2
        assert training["train_loss"]["value"] == pytest.approx(its["train_loss"]["value"], rel=rounding)
        assert training["last"] == pytest.approx(its["last"], rel=rounding)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone"), request(GRID))[1]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("workers", "most"), [(1, None), (2, 5), (3, None), (1, 2)])
def test_records_are_those_of_the_runs_alone(tmp_path, alone, workers, most):
    summary, records = run(tmp_path, request(GRID), grouping=GroupPlanner(workers, most))
    assert (summary.trained, summary.parted, summary.failures) == (24, [], [])
    check_same_runs(records, alone)
    sizes = sorted(record.group["size"] for record in records.values())
    assert sizes == {(1, None): [12] * 24, (2, 5): [4] * 24, (3, None): [8] * 24, (1, 2): [2] * 24}[workers, most]
    for record in records.values():
        assert record.seconds == pytest.approx(record.group["seconds"] / record.group["size"], abs=2e-3)
        assert record.group["executor"] in {"written", "stacked"}
        assert math.isfinite(record.curves["train_loss"].value[-1])


class Killed(BaseException):
    """What ends a process, in this one."""


def killed(*_):
    raise Killed


def hear(heard, most, epoch):
    if len(heard) == most:
        raise Killed
    heard.append(epoch)


def whole(grid):
    """Return all cells of a grid as a group."""
    (group,) = GroupPlanner(1).jobs(request(grid).first_cells())
    return group


@pytest.fixture
def group():
    return whole(replace(GRID, seeds=1))


@pytest.fixture
def keyed():
    """A group whose nets draw noise by key, as those on a GPU do."""
    return whole(replace(GRID, seeds=1, task_args={**GRID.task_args, "noise": "keys"}))


@pytest.fixture
def eager(monkeypatch):
    """Save and report at every batch of the Trainer."""
    monkeypatch.setattr("gelu_paper.training.group_recorder.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr("gelu_paper.training.group_recorder.SECONDS_BETWEEN_REPORTS", -1.0)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kills", [(1,), (3,), (2, 1, 2), (6,)])
def test_a_killed_group_goes_on_to_the_same_bits(tmp_path, monkeypatch, group, eager, kills):
    options, data = RunOptions(groups=str(tmp_path)), DataCache(None)
    unbroken = train_group(group, data, RunOptions(), lambda epoch: None)
    heard = []
    for reports in kills:  # of six, at each of which a checkpoint is saved
        with monkeypatch.context() as patched:
            patched.setattr("gelu_paper.training.group_training.robustness_of", killed)  # when all are trained
            with pytest.raises(Killed):
                train_group(group, data, options, partial(hear, heard, len(heard) + reports))
    records = train_group(group, data, options, heard.append)
    assert [how_far.epoch for how_far in heard] == pytest.approx([
        number / 3 for number in range(1, 7)
    ])  # nothing was made twice
    for record, expected in zip(records, unbroken, strict=True):
        assert bits(record) == bits(expected)


def bits(record):
    """Return a record without times."""
    return asdict(replace(record, started="", seconds=0.0, group={**record.group, "seconds": 0.0}))


WRONG = replace(GRID, seeds=1, settings={"keep": (1.0,)}, learning_rates=(1e-2, 1e30), epochs=1, task_args={})


def test_a_run_that_diverges_ends_as_it_does_alone_and_touches_no_other(tmp_path):
    _, alone = run(tmp_path / "alone", request(WRONG))
    summary, records = run(tmp_path / "together", request(WRONG), grouping=GroupPlanner(1))
    assert summary.diverged == 3
    assert {key for key, record in records.items() if record.status == "diverged"} == {
        key for key in records if "lr=1e+30" in key
    }
    assert {record.group["size"] for record in records.values()} == {6}
    for key, record in records.items():
        if record.status == "finished":
            check_same_runs({key: record}, {key: alone[key]})
            continue
        assert alone[key].status == "diverged"
        assert record.robustness is None
        for name, curve in record.curves.items():
            assert curve.epoch == alone[key].curves[name].epoch  # they end at the same measurement
            if name != "train_loss":
                assert curve.value == pytest.approx(alone[key].curves[name].value, abs=0, nan_ok=True)


@pytest.fixture
def on_device(monkeypatch):
    """Make groups whose steps are those of a GPU, here by operations on the CPU."""
    monkeypatch.setattr("gelu_paper.training.group_training.ReplicaGroup", partial(ReplicaGroup, executor="device"))


@pytest.mark.parametrize("rates", [(1e-2, 1e30), (1e30,)], ids=["some", "all"])
def test_on_a_device_a_run_diverges_at_the_same_measurement(tmp_path, monkeypatch, on_device, rates):
    wrong = replace(WRONG, learning_rates=rates, epochs=2)
    with monkeypatch.context() as patched:
        patched.setattr("gelu_paper.training.group_training.ReplicaGroup", ReplicaGroup)
        _, expected = run(tmp_path / "written", request(wrong), grouping=GroupPlanner(1))
    summary, records = run(tmp_path / "device", request(wrong), grouping=GroupPlanner(1))
    assert summary.diverged == 3
    assert {record.group["executor"] for record in records.values()} == {"device"}
    for key, record in records.items():
        assert record.status == expected[key].status
        for name, curve in record.curves.items():
            assert curve.epoch == expected[key].curves[name].epoch
            if record.status == "finished":
                assert curve.value == pytest.approx(expected[key].curves[name].value, rel=1e-2, abs=1e-2)


def test_on_a_device_a_diverged_run_ends_at_the_same_step_however_often_a_checkpoint_is_saved(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        "gelu_paper.training.group_training.ReplicaGroup",
        lambda members: made.append(ReplicaGroup(members, executor="device")) or made[-1],
    )
    (group,) = GroupPlanner(1).jobs(request(replace(WRONG, epochs=2)).first_cells())
    for seconds in ("1e9", "0"):
        for name in ("SECONDS_BETWEEN_CHECKPOINTS", "_SECONDS_BEFORE_AN_EPOCHS_END"):
            monkeypatch.setattr(f"gelu_paper.training.group_recorder.{name}", float(seconds))
        train_group(group, DataCache(None), RunOptions(groups=str(tmp_path / seconds)), lambda _: None)
    often, never = ([one.member_checkpoint(replica)["global_step"] for replica in range(6)] for one in made)
    assert often == never
    assert len(set(often)) == 2  # those of the runs that diverge, and of the others


def test_on_a_device_a_measurement_is_read_when_the_next_one_is_made(monkeypatch, keyed, on_device):
    events = []

    def noted(name, method, *given, **named):
        events.append(name)
        return method(*given, **named)

    for name, owner, method in (
        ("step", EagerExecutor, "steps"),
        ("measure", EagerExecutor, "means"),
        ("over", ReplicaGroup, "on_train_batch_end"),
        ("read", GroupRecorder, "_add"),
    ):
        own = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda *given, _all=(name, own), **named: noted(*_all, *given, **named))
    train_group(keyed, DataCache(None), RunOptions(), lambda epoch: None)
    made = ["step", "measure", "measure"]
    assert events == [*made, "over", *[*made, "read", "over"] * 5, "read"]  # three times in each of two epochs


@pytest.mark.one_in(2)
@pytest.mark.parametrize("reports", [1, 3])
def test_on_a_device_a_killed_group_goes_on_to_the_same_bits(tmp_path, keyed, on_device, eager, reports):
    options, data, heard = RunOptions(groups=str(tmp_path)), DataCache(None), []
    unbroken = train_group(keyed, data, RunOptions(), lambda epoch: None)
    with pytest.raises(Killed):
        train_group(keyed, data, options, partial(hear, heard, reports))
    records = train_group(keyed, data, options, heard.append)
    assert len(heard) == 6
    for record, expected in zip(records, unbroken, strict=True):
        assert bits(record) == bits(expected)


def test_nets_are_measured_where_they_were_trained_and_left_on_the_cpu():
    """A Trainer has moved them to the CPU by then: on a GPU, 45 nets under noise took 12 seconds there."""
    places = []
    module = SimpleNamespace(to=places.append, cpu=lambda: places.append("cpu"))
    for device in ("cpu", "cuda"):
        with back_on(torch.device(device), module):
            places.append("measured")
    assert places == ["measured", torch.device("cuda"), "measured", "cpu"]


@pytest.mark.one_in(2)
@pytest.mark.skipif(sys.platform == "win32", reason="the limit on the size of files is POSIX's")
@pytest.mark.parametrize("limit", [20_000, 0])
def test_a_group_goes_on_where_what_a_kill_would_lose_cannot_be_saved(tmp_path, group, eager, limit):
    """Room for its description but not for its checkpoint, and for nothing at all."""
    unbroken = train_group(group, DataCache(None), RunOptions(), lambda epoch: None)
    heard, folder = [], tmp_path / "groups"
    with files_limited_to(limit):
        records = train_group(group, DataCache(None), RunOptions(groups=str(folder)), heard.append)
    assert [bits(record) for record in records] == [bits(record) for record in unbroken]
    (warning,) = {how_far.warning for how_far in heard} - {""}
    assert warning.startswith("the runs go on, but what a kill would lose is not saved: Cannot write ")
    assert limit > 0 or all(how_far.warning for how_far in heard)  # Ray's pool may drop all but the last
    assert len(list(folder.iterdir())) == (limit > 0)


@pytest.mark.skipif(sys.platform == "win32", reason="the limit on the size of files is POSIX's")
def test_saving_is_tried_again_when_there_is_room(tmp_path, group, eager):
    heard, room = [], ExitStack()
    room.enter_context(files_limited_to(20_000))

    def hear_all(how_far):
        heard.append(how_far)
        if how_far.epoch > 1:
            room.close()

    train_group(group, DataCache(None), RunOptions(groups=str(tmp_path)), hear_all)
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".ckpt", ".json"]


@pytest.mark.skipif(sys.platform == "win32", reason="the limit on the size of files is POSIX's")
def test_the_runs_of_a_group_are_recorded_without_their_checkpoints(tmp_path, group):
    heard = []
    with files_limited_to(20_000):
        records = train_group(group, DataCache(None), RunOptions(checkpoints=str(tmp_path)), heard.append)
    keys = [cell.key for cell in group.cells]
    assert [record.key for record in records] == keys == [how_far.unkept for how_far in heard if how_far.unkept]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
