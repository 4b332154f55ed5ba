"""Making the runs of a grid: everything once, whatever comes between."""

import math
from dataclasses import replace

import pytest
from paper_runs import DIGITS, FINAL, MISSING, SEARCH, SHARING, InlinePool, Log, request, run, without_times

from gelu_paper.errors import OtherConfigurationError
from gelu_paper.grid_runner import Runner
from gelu_paper.group_planning import GroupPlanner
from gelu_paper.jobs import CellGroup, Failure, Progress
from gelu_paper.planning import plan
from gelu_paper.protocol.cells import expand
from gelu_paper.protocol.experiments import Arm
from gelu_paper.records.run_record import read_records
from gelu_paper.records.run_store import RecordStore


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("uninterrupted"), request(DIGITS, SHARING))


def test_every_run_is_recorded_and_identical_ones_are_made_once(uninterrupted):
    summary, records = uninterrupted
    assert len(records) == 8 + 4
    assert (summary.finished, summary.trained, summary.shared, summary.not_made) == (0, 10, 2, 0)
    shared = {record.key: record.shared_from for record in records.values() if record.shared_from}
    assert shared == {
        f"sharing/relu/keep=1/lr=0.01/seed={seed}": f"digits/relu/keep=1/lr=0.01/seed={seed}" for seed in range(2)
    }


def test_a_record_says_what_the_run_was_and_how_it_went(uninterrupted):
    _, records = uninterrupted
    record = records["digits/gelu/keep=0.5/lr=0.01/seed=1"]
    assert record.activation == "gelu(approximate='tanh')"
    assert record.setting == {"keep": 0.5}
    assert record.config["model"]["init_args"]["keep"] == 0.5
    assert record.config["trainer"]["max_epochs"] == 2
    assert record.versions.keys() >= {"torch", "lightning", "lit-gelu", "python"}
    assert record.seconds > 0
    assert record.curves["val_error"].epoch == pytest.approx([3 / 9, 6 / 9, 1, 12 / 9, 15 / 9, 2])
    assert record.result.last_test_error == record.curves["test_error"].value[-1] < 0.5
    assert record.result.best_val_error == min(record.curves["val_error"].value)


def test_noise_is_measured_where_asked_and_its_first_level_is_none(uninterrupted):
    _, records = uninterrupted
    for record in records.values():
        is_robust = record.experiment == "digits" and record.setting["keep"] == 1.0
        assert (record.robustness is not None) == is_robust
        if record.robustness is not None:
            assert record.robustness.levels == (0.0, 1.0)
            assert record.robustness.error[0] == pytest.approx(record.result.last_test_error)
            assert record.robustness.error[1] > record.robustness.error[0]


def test_seeds_and_settings_give_different_runs(uninterrupted):
    _, records = uninterrupted
    losses = [record.result.last_train_loss for record in records.values() if record.shared_from is None]
    assert len(set(losses)) == len(losses)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stop_after", [1, 4, 9])
def test_a_run_that_was_stopped_gives_the_same_results(tmp_path, uninterrupted, stop_after):
    _, expected = uninterrupted
    wanted = request(DIGITS, SHARING)
    first = InlinePool(stop_after=stop_after)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, wanted, first)
    # What a kill in the middle of writing would leave.
    with (tmp_path / "runs.jsonl").open("ab") as file:
        file.write(next(iter(expected.values())).to_json().encode()[:100])
    store = RecordStore(tmp_path)
    with pytest.warns(UserWarning, match="cut off"):
        store.__enter__()
    store.__exit__(None, None, None)
    second = InlinePool()
    summary, records = run(tmp_path, wanted, second)
    assert not set(first.trained) & set(second.trained)
    assert len(first.trained) == stop_after
    assert summary.finished + summary.trained + summary.shared == 12
    assert without_times(records) == without_times(expected)
    assert {record.key: record for record in read_records(tmp_path)} == records


def test_nothing_is_made_twice(tmp_path, uninterrupted):
    wanted = request(SHARING)
    run(tmp_path, wanted)
    pool = InlinePool()
    summary, _ = run(tmp_path, wanted, pool)
    assert pool.trained == []
    assert summary.finished == 4


def test_a_run_in_the_results_serves_another_experiment(tmp_path, uninterrupted):
    run(tmp_path, request(DIGITS))
    pool = InlinePool()
    summary, records = run(tmp_path, request(SHARING), pool)
    assert summary.shared == 2
    assert pool.trained == [f"sharing/relu/keep=0.75/lr=0.01/seed={seed}" for seed in range(2)]
    assert records["sharing/relu/keep=1/lr=0.01/seed=0"].robustness is None


def test_a_run_without_noise_does_not_serve_one_with(tmp_path):
    small = {"seeds": 1, "settings": {"keep": (1.0,)}, "arms": {"relu": Arm("relu")}}
    run(tmp_path, request(replace(SHARING, seeds=1)))
    pool = InlinePool()
    _, records = run(tmp_path, request(replace(DIGITS, **small)), pool)
    assert pool.trained == ["digits/relu/keep=1/lr=0.01/seed=0"]
    assert records["digits/relu/keep=1/lr=0.01/seed=0"].robustness is not None


def test_numbers_come_from_the_run_that_was_made_and_not_from_its_copies(uninterrupted):
    """A copy under another name lacks what its experiment does not measure, and is nobody's source."""
    _, records = uninterrupted
    copies = [key for key, record in records.items() if record.shared_from is not None]
    assert copies == [f"sharing/relu/keep=1/lr=0.01/seed={seed}" for seed in range(2)]
    for experiment in (replace(SHARING, name="third"), replace(DIGITS, name="fourth")):
        planned = plan(expand(experiment, "quick", arms=("relu",)), records)
        sources = {record.key: record.shared_from for record in planned.shared}
        for seed in range(2):
            key = f"relu/keep=1/lr=0.01/seed={seed}"
            assert sources[f"{experiment.name}/{key}"] == f"digits/{key}"


def test_another_configuration_of_a_finished_run_is_refused(tmp_path):
    small = replace(SHARING, seeds=1)
    run(tmp_path, request(small))
    before = (tmp_path / "runs.jsonl").read_bytes()
    with pytest.raises(OtherConfigurationError, match=r"trainer.max_epochs: 2 in the record, 3 now"):
        run(tmp_path, request(replace(small, epochs=3)))
    assert (tmp_path / "runs.jsonl").read_bytes() == before


def test_a_failed_run_stops_no_other_and_is_tried_again(tmp_path):
    small = replace(SHARING, seeds=2, arms={"bad": Arm("glu"), "relu": Arm("relu", settings={"keep": (1.0,)})})
    summary, records = run(tmp_path, request(small))
    assert {record.arm for record in records.values()} == {"relu"}
    assert len(records) == 2
    assert [(failure.kind, runs) for _, failure, runs in summary.failures] == [("error", 1)] * 4
    assert "turns shape" in summary.failures[0][1].message
    assert summary.not_made == 4
    again, _ = run(tmp_path, request(small))
    assert again.finished == 2
    assert again.not_made == 4


class _LosesFirst(InlinePool):
    """Says of a run that its checkpoint cannot be written, loses the process, and keeps it the second time."""

    def wait(self, seconds):
        for job, message in super().wait(seconds):
            if isinstance(job, CellGroup) and not self.lost:
                self.lost = True
                yield job, Progress(2.0, warning="not kept: no room", unkept=job.cells[0].key)
                yield job, Failure("lost", "The process was killed by SIGKILL.", begun=1)
            else:
                yield job, replace(message, unkept=self.unkept) if isinstance(job, CellGroup) else message

    lost, unkept = False, {}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("unkept", [{}, {"digits/gelu/keep=1/lr=0.01/seed=0": "no room"}])
def test_a_checkpoint_is_not_there_if_the_last_attempt_did_not_keep_it(tmp_path, unkept):
    pool = _LosesFirst()
    pool.unkept = unkept
    summary, records = run(tmp_path, request(DIGITS), pool, GroupPlanner(1, None))
    assert (len(records), summary.unkept) == (8, set(unkept))


def test_a_fault_of_the_program_is_reported_with_its_trace(tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("gelu_paper.pools.job_answer.train", fail)
    summary, _ = run(tmp_path, request(replace(SHARING, seeds=1)))
    assert summary.failures[0][1].message == "ZeroDivisionError: by zero"
    assert "Traceback" in summary.failures[0][1].trace


def test_missing_data_leave_out_their_runs_in_one_go(tmp_path):
    with RecordStore(tmp_path / "results") as store:
        log, pool = Log(), InlinePool(root=str(tmp_path / "no data"))
        summary = Runner(request(MISSING, replace(SHARING, seeds=1)), store, pool, log).run()
    assert [(failure.kind, runs) for _, failure, runs in summary.failures] == [("missing", 4)]
    assert "MNIST is not in" in summary.failures[0][1].message
    assert summary.trained == 2  # the digits need no file
    assert log.heard.count(("failed", "missing", 4)) == 1


def test_data_of_another_kind_than_required_are_missing(tmp_path):
    needy = replace(SHARING, seeds=1, data_requires={"batch_size": "core test"})
    summary, records = run(tmp_path, request(needy))
    assert not records
    assert summary.failures[0][1].kind == "missing"
    assert "batch_size is 128; this protocol needs 'core test'" in summary.failures[0][1].message


def test_data_that_could_not_be_prepared_are_missing_at_a_later_stage_too(tmp_path):
    """A stage that waited for them would wait for ever: they are prepared once."""
    search = replace(SEARCH, learning_rates=(1e-2,))
    needy = replace(FINAL, data=MISSING.data)
    with RecordStore(tmp_path / "results") as store:
        pool = InlinePool(root=str(tmp_path / "no data"))
        summary = Runner(request(MISSING, search, needy), store, pool, Log()).run()
    assert [(failure.kind, runs) for _, failure, runs in summary.failures] == [("missing", 4), ("missing", 4)]
    assert "MNIST is not in" in summary.failures[1][1].message
    assert summary.trained == 2


class TestSearch:
    def test_final_runs_use_what_the_search_chose_for_their_arm(self, tmp_path):
        summary, records = run(tmp_path, request(SEARCH, FINAL))
        finals = {record.key for record in records.values() if record.experiment == "final"}
        assert finals == {f"final/{arm}/lr=0.01/seed={seed}" for arm in ("gelu", "relu") for seed in range(2)}
        # Seed 0 at the chosen rate is the search's own run here: neither holds images out.
        assert (summary.trained, summary.shared) == (4 + 2, 2)

    def test_only_the_final_experiment_brings_its_search(self, tmp_path):
        _, records = run(tmp_path, request(SEARCH, FINAL, only=("final",), arms=("relu",)))
        assert {record.experiment for record in records.values()} == {"search", "final"}
        assert {record.arm for record in records.values()} == {"relu"}

    def test_an_arm_whose_search_failed_is_left_out(self, tmp_path):
        class Failing(InlinePool):
            def answer(self, job):
                failed = getattr(job, "key", "").startswith("search/relu/lr=0.01")
                return Failure("lost", "killed") if failed else super().answer(job)

        summary, records = run(tmp_path, request(SEARCH, FINAL), Failing())
        assert {record.arm for record in records.values() if record.experiment == "final"} == {"gelu"}
        assert [(failure.kind, runs) for _, failure, runs in summary.failures] == [("lost", 1), ("no rate", 2)]
        assert "the search for its learning rate, search, is not complete" in summary.failures[1][1].message
        again, records = run(tmp_path, request(SEARCH, FINAL))
        assert again.not_made == 0
        assert len([record for record in records.values() if record.experiment == "final"]) == 4

    def test_an_arm_that_diverged_at_every_rate_is_left_out(self, tmp_path):
        wild = replace(SEARCH, learning_rates=(1e30, 1e29), arms={"relu": Arm("relu")})
        summary, records = run(tmp_path, request(wild, replace(FINAL, arms=wild.arms)))
        assert {record.status for record in records.values()} == {"diverged"}
        assert {record.experiment for record in records.values()} == {"search"}
        assert [(failure.kind, runs) for _, failure, runs in summary.failures] == [("no rate", 2)]
        assert "Arm relu: its runs of search diverged at every learning rate." in summary.failures[0][1].message


def test_a_diverged_run_is_recorded_and_not_repeated(tmp_path):
    wild = replace(DIGITS, learning_rates=(1e30,), seeds=1, settings={}, arms={"relu": Arm("relu")})
    summary, records = run(tmp_path, request(wild))
    (record,) = records.values()
    assert record.status == "diverged"
    assert summary.diverged == 1
    assert record.robustness is None
    assert record.result.last_train_loss is None
    (read,) = read_records(tmp_path)
    assert not math.isfinite(read.curves["train_loss"].value[-1])
    again, _ = run(tmp_path, request(wild))
    assert (again.finished, again.trained) == (1, 0)


def test_plan_of_nothing():
    planned = plan([], {})
    assert (planned.finished, planned.shared, planned.identical) == ((), (), ())
    cells = expand(DIGITS, "quick")
    assert sum(len(group) for group in plan(cells, {}).identical) == len(cells)
