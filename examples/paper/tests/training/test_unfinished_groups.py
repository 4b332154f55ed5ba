"""Groups in a runner: gone on with after a kill, parted after an error, forgotten when their runs are recorded."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from child_processes import end_of, run_command, started
from paper_records import run_record
from paper_runs import DIGITS, SHARING, InlinePool, Log, request, run, without_times

from gelu_paper.grid_runner import Runner
from gelu_paper.group_planning import GroupPlanner
from gelu_paper.jobs import Failure, RunOptions
from gelu_paper.protocol.cells import plain
from gelu_paper.protocol.experiments import Arm
from gelu_paper.records.run_record import read_records
from gelu_paper.records.run_store import RecordStore
from gelu_paper.shards import parse_shard, records_of_others
from gelu_paper.training.cell_training import DataCache
from gelu_paper.training.group_training import train_group
from gelu_paper.training.unfinished_groups import GROUPS_FOLDER, unfinished_groups

SMALL = replace(SHARING, seeds=2, epochs=1)
SCRIPT = Path(__file__).parents[1] / "digits_grid.py"


class Killed(BaseException):
    """What ends a process, in this one."""


def killed(_):
    raise Killed


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def left_behind(folder, monkeypatch, workers=1):
    """Leave the first group of `SMALL` behind in a folder of results as a kill leaves it."""
    monkeypatch.setattr("gelu_paper.training.group_recorder.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    group = GroupPlanner(workers).jobs(request(SMALL).first_cells())[0]
    options = RunOptions(groups=str(folder / GROUPS_FOLDER))
    heard = []

    def stop(epoch):
        heard.append(epoch)
        if len(heard) == 2:
            raise Killed

    monkeypatch.setattr("gelu_paper.training.group_recorder.SECONDS_BETWEEN_REPORTS", -1.0)
    with pytest.raises(Killed):
        train_group(group, DataCache(None), options, stop)
    (folder / GROUPS_FOLDER / f".{group.name}-0a-1-x.ckpt").write_bytes(b"cut")  # a write that the kill cut off
    return group


class Listening(InlinePool):
    """Keeps which jobs it was given."""

    def __init__(self, folder, answers=()):
        super().__init__(groups=str(folder / GROUPS_FOLDER))
        self.jobs, self.answers = [], list(answers)

    def answer(self, job):
        self.jobs.append(job)
        return self.answers.pop(0) if self.answers and hasattr(job, "cells") else super().answer(job)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_group_is_gone_on_with_whatever_groups_are_made_now(tmp_path, monkeypatch, workers):
    group = left_behind(tmp_path, monkeypatch)
    pool = Listening(tmp_path)
    summary, records = run(tmp_path, request(SMALL), pool, GroupPlanner(workers))
    assert [job.cells for job in pool.jobs[1:]] == [group.cells]
    assert (summary.trained, len(records)) == (4, 4)
    assert not (tmp_path / GROUPS_FOLDER).exists()


def test_runs_recorded_before_the_kill_are_not_recorded_twice(tmp_path, monkeypatch):
    _, whole = run(tmp_path / "whole", request(SMALL), grouping=GroupPlanner(1))
    folder = tmp_path / "killed"
    group = left_behind(folder, monkeypatch)
    with RecordStore(folder) as store:
        store.append(whole[group.cells[1].key])
    summary, records = run(folder, request(SMALL), Listening(folder), GroupPlanner(1))
    assert (summary.finished, summary.trained) == (1, 3)
    for key, record in records.items():
        assert replace(record, group=None, seconds=0, started="") == replace(
            whole[key], group=None, seconds=0, started=""
        )


def test_a_group_with_runs_that_are_not_asked_for_waits(tmp_path, monkeypatch):
    left_behind(tmp_path, monkeypatch)
    before = names(tmp_path / GROUPS_FOLDER)
    pool = Listening(tmp_path)
    small = replace(SMALL, seeds=1)
    run(tmp_path, request(small), pool, GroupPlanner(1))
    assert {len(job.cells) for job in pool.jobs[1:]} == {2}
    assert names(tmp_path / GROUPS_FOLDER) == before
    run(tmp_path, request(SMALL), grouping=None)  # the others, one by one: all is recorded
    assert not (tmp_path / GROUPS_FOLDER).exists()


def test_a_group_stays_while_its_runs_are_wanted(tmp_path, monkeypatch):
    """Another experiment's records of the same runs may lack what is measured here: such runs are made again."""
    group = left_behind(tmp_path, monkeypatch)
    checkpoint = tmp_path / GROUPS_FOLDER / f"{group.name}.ckpt"
    with RecordStore(tmp_path) as store:
        for number, cell in enumerate(group.cells):
            made = run_record(seed=cell.seed)
            store.append(replace(made, key=f"other {number}", experiment="other", config=plain(cell.config)))
        runner = Runner(request(SMALL), store, Listening(tmp_path), Log(), grouping=GroupPlanner(1))
        runner._forget_groups(group.cells[:1])
        assert checkpoint.exists()
        runner._forget_groups([])
        assert not checkpoint.exists()


def test_damaged_descriptions_are_passed_over(tmp_path, monkeypatch):
    group = left_behind(tmp_path, monkeypatch)
    cells = {cell.fingerprint: cell for cell in group.cells}
    (tmp_path / GROUPS_FOLDER / "a.json").write_bytes(b'{"runs": [1]}')
    (tmp_path / GROUPS_FOLDER / "b.json").write_bytes(b"\xff[")
    assert unfinished_groups(tmp_path / GROUPS_FOLDER, cells, cells) == [group]
    assert unfinished_groups(tmp_path / GROUPS_FOLDER, cells, []) == []
    (tmp_path / GROUPS_FOLDER / f"{group.name}.ckpt").unlink()
    assert unfinished_groups(tmp_path / GROUPS_FOLDER, cells, cells) == []


def test_what_another_version_left_is_not_gone_on_from(tmp_path, monkeypatch):
    group = left_behind(tmp_path, monkeypatch)
    monkeypatch.setattr("gelu_paper.training.group_training.versions", lambda: {"torch": "1.0"})
    heard = []
    train_group(group, DataCache(None), RunOptions(groups=str(tmp_path / GROUPS_FOLDER)), heard.append)
    assert heard[0].epoch == pytest.approx(1 / 3)


def test_what_one_group_cannot_hold_is_made_in_two_and_it_is_said(tmp_path):
    # Stacks of both PReLUs would have parameters of two shapes.
    shapes = {"one": Arm("prelu", settings={}), "each": Arm("prelu(num_parameters=128)", settings={})}
    wanted = request(replace(SMALL, arms=shapes, settings={}, tuned=("learning_rate",)))
    with RecordStore(tmp_path) as store:
        log = Log()
        summary = Runner(wanted, store, Listening(tmp_path), log, grouping=GroupPlanner(1)).run()
        assert len(store.records) == 4
        assert {record.group["size"] for record in store.records.values()} == {2}
    ((group, failure),) = summary.parted
    assert len(group.cells) == 4
    assert "The members differ in 'hidden.0.activation.weight'" in failure.message
    assert summary.failures == []
    assert ("retried", "error", False) in log.heard
    assert not (tmp_path / GROUPS_FOLDER).exists()


def test_a_group_whose_process_dies_goes_on_once_and_is_parted_then(tmp_path):
    lost = Failure("lost", "killed")
    pool = Listening(tmp_path, [lost, lost])
    summary, records = run(tmp_path, request(SMALL), pool, GroupPlanner(1))
    assert [len(job.cells) for job in pool.jobs[1:]] == [4, 4, 2, 2]
    assert len(records) == 4
    assert [failure for _, failure in summary.parted] == [lost]
    pool = Listening(tmp_path / "once", [lost])
    summary, records = run(tmp_path / "once", request(SMALL), pool, GroupPlanner(1))
    assert {record.group["size"] for record in records.values()} == {4}
    assert summary.parted == []


def test_a_group_that_its_engine_began_several_times_is_parted_at_once(tmp_path):
    """Ray has begun it again by itself, so that the whole group would be lost once more."""
    pool = Listening(tmp_path, [Failure("lost", "killed", begun=3)])
    summary, records = run(tmp_path, request(SMALL), pool, GroupPlanner(1))
    assert [len(job.cells) for job in pool.jobs[1:]] == [4, 2, 2]
    assert len(records) == 4
    assert [failure.begun for _, failure in summary.parted] == [3]


def test_one_faulty_run_leaves_the_others_together(tmp_path):
    arms = {name: Arm(name, settings={}) for name in ("elu", "glu", "relu", "silu")}
    pool = Listening(tmp_path)
    summary, records = run(tmp_path, request(replace(SMALL, arms=arms, seeds=1)), pool, GroupPlanner(1))
    assert [(job.arm, runs) for job, _, runs in summary.failures] == [("glu", 1)]
    assert {record.arm: record.group and record.group["size"] for record in records.values()} == {
        "elu": None,
        "relu": 2,
        "silu": 2,
    }
    assert all("turns shape" in failure.message for _, failure in summary.parted)


def test_missing_data_leave_out_the_runs_of_groups(tmp_path):
    missing = Failure("missing", "gone")
    summary, records = run(tmp_path, request(SMALL), Listening(tmp_path, [missing]), GroupPlanner(2))
    assert not records
    assert [runs for _, _, runs in summary.failures] == [4]


def test_shards_make_groups_of_their_own_parts(tmp_path):
    made = {}
    for index in (1, 2):
        shard = parse_shard(f"{index}/2")
        wanted = replace(request(replace(DIGITS, epochs=1)), shard=shard)
        own = tmp_path / shard.name
        with RecordStore(own) as store:
            planner = GroupPlanner(1)
            elsewhere = lambda own=own: records_of_others(tmp_path, own)  # noqa: E731 - one expression
            Runner(wanted, store, Listening(own), Log(), elsewhere, planner).run()
            assert {record.group["size"] for record in store.records.values()} == {4}
            assert not made.keys() & store.records.keys()
            made |= store.records
    assert len(made) == 8


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes as Linux lists them")
@pytest.mark.parametrize("who", ["worker", "driver"])
def test_killed_amid_groups_the_records_are_those_of_the_unbroken_run(tmp_path, who):
    def grid(folder):
        command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), "together"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OFTEN": "1"}
        return started(command, stdout=subprocess.PIPE, env=environment)

    with grid(tmp_path / "killed") as process:
        beginning = next(line for line in process.stdout if line.startswith("in the middle of"))
        assert "runs together" in beginning
        for _ in range(4):
            next(line for line in process.stdout if line.startswith("in the middle of"))
        if who == "driver":
            process.kill()
        else:
            listed = run_command(["pgrep", "-P", str(process.pid), "-f", "spawn_main"])
            os.kill(int(listed.stdout.split()[0]), signal.SIGKILL)
        lines = end_of(process)[0]
    if who == "driver":
        assert list((tmp_path / "killed" / GROUPS_FOLDER).glob("*.ckpt"))
        with grid(tmp_path / "killed") as process:
            end_of(process)
    else:
        assert "retried True The process was killed by SIGKILL" in lines
    with grid(tmp_path / "whole") as process:
        end_of(process)
    found, whole = ({r.key: r for r in read_records(tmp_path / name)} for name in ("killed", "whole"))
    assert len(whole) == 12
    one, other = without_times(found), without_times(whole)
    assert {key: differing(one[key], other[key]) for key in whole} == {key: [] for key in whole}


def differing(one, other):
    """Return the names of fields in which two records differ; runs that were not begun come into other groups."""
    return [name for name in one if name != "group" and one[name] != other[name]]
