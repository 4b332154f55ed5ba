"""Worker processes: they work side by side, may die, and never stay behind."""

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from child_processes import end_of, is_running, run_command, started, wait_until
from paper_runs import DIGITS, run, without_times

from gelu_paper.errors import PaperArgumentError
from gelu_paper.jobs import Done, Preparation, Progress, RunOptions
from gelu_paper.pools.worker_pool import WorkerPool
from gelu_paper.protocol.cells import expand
from gelu_paper.records.run_record import read_records

SCRIPT = Path(__file__).parents[1] / "digits_grid.py"
DATA = {"class_path": "lit_gelu.data.DigitsData", "init_args": {}}


def messages(pool):
    """Return what is said until no job is running."""
    heard = []
    wait_until(lambda: heard.extend(pool.wait(1.0)) or not pool.running, "no job is running")
    return heard


def processes_of(pool):
    return [worker.process for worker in pool._processes]


@pytest.mark.full
def test_a_killed_process_is_reported_and_replaced_and_none_stays_behind():
    threads = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    cell = expand(DIGITS, "quick")[0]
    with WorkerPool(1, RunOptions()) as pool:
        pool.start(Preparation("digits", DATA))
        assert not pool.has_room
        assert [message for _, message in messages(pool)] == [Done()]
        assert pool.has_room

        (process,) = processes_of(pool)
        os.kill(process.pid, signal.SIGSTOP)  # so that it cannot have finished when it is killed
        pool.start(Preparation("digits again", DATA))
        os.kill(process.pid, signal.SIGKILL)
        ((job, failure),) = messages(pool)
        assert job.key == "digits again"
        assert failure.kind == "lost"
        assert "killed by SIGKILL" in failure.message
        assert "fewer --workers" in failure.message

        pool.start(cell)
        heard = messages(pool)
        assert all(isinstance(message, Progress) for _, message in heard[:-1])
        (_, done) = heard[-1]
        assert done.records[0].key == cell.key
        assert done.records[0].machine["threads"] == 1
        (process,) = processes_of(pool)
        pool.start(Preparation("never finished", DATA))
    assert not process.is_alive()
    assert threads == {name: os.environ.get(name) for name in threads}


@pytest.mark.full
def test_processes_for_what_is_expected_are_there_before_their_jobs():
    with WorkerPool(2, RunOptions()) as pool:
        pool.expect(1)
        (first,) = processes_of(pool)
        assert (pool.running, pool.has_room) == (0, True)
        pool.expect(5)
        assert len(processes_of(pool)) == 2  # no more than there are at a time
        pool.expect(0)
        pool.start(Preparation("digits", DATA))
        assert [message for _, message in messages(pool)] == [Done()]
        assert processes_of(pool)[0] is first
        assert len(processes_of(pool)) == 2
    assert not first.is_alive()


def environment_of(process) -> dict[str, str]:
    """Return the variables that a process was started with; between fork and exec Linux shows none."""
    file = Path(f"/proc/{process.pid}/environ")
    wait_until(lambda: file.read_bytes(), "the process has variables")
    text = file.read_bytes().decode()
    return dict(line.partition("=")[::2] for line in text.split("\0") if line)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals without a name are Linux's")
def test_a_signal_without_a_name_loses_its_job_and_ends_nothing_else():
    unnamed = signal.SIGRTMIN + 6
    with WorkerPool(1, RunOptions()) as pool:
        pool.start(Preparation("digits", DATA))
        os.kill(processes_of(pool)[0].pid, unnamed)
        ((_, failure),) = messages(pool)
        assert (failure.kind, failure.message) == ("lost", f"The process was killed by signal {unnamed}.")
        assert pool.has_room


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads variables of processes as Linux shows them")
def test_every_process_sees_a_gpu_of_its_own_and_the_one_that_replaces_it_the_same(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    with WorkerPool(3, RunOptions(gpus=("3", "GPU-5"))) as pool:
        for number in range(3):
            pool.start(Preparation(f"digits {number}", DATA))
        seen = [environment_of(process)["CUDA_VISIBLE_DEVICES"] for process in processes_of(pool)]
        assert seen == ["3", "GPU-5", "3"]  # more processes than GPUs share them
        os.kill(processes_of(pool)[1].pid, signal.SIGKILL)
        wait_until(lambda: any(message.kind == "lost" for _, message in pool.wait(0.1)), "one is lost")
        pool.start(Preparation("digits again", DATA))
        assert environment_of(processes_of(pool)[-1])["CUDA_VISIBLE_DEVICES"] == "GPU-5"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,GPU-5"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads variables of processes as Linux shows them")
def test_processes_see_what_this_one_sees_unless_gpus_are_handed_out(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with WorkerPool(1, RunOptions()) as pool:
        pool.start(Preparation("digits", DATA))
        assert "CUDA_VISIBLE_DEVICES" not in environment_of(*processes_of(pool))


def test_at_least_one_process():
    with pytest.raises(PaperArgumentError, match="workers=0"):
        WorkerPool(0, RunOptions())


def children_of(pid: int) -> list[int]:
    listed = run_command(["pgrep", "-P", str(pid)], check=False)
    return [int(line) for line in listed.stdout.split()]


def wait_until_all_end(processes: list[int]) -> None:
    """Wait for processes that nobody waits for any more: multiprocessing's own resource tracker is among them."""
    wait_until(lambda: not any(map(is_running, processes)), f"the workers {processes} have ended")


def grid(folder: Path, **options: Any) -> AbstractContextManager[subprocess.Popen]:
    """Start the script; it says when a worker begins a run, and which were recorded."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder)]
    return started(command, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}, **options)


def next_line(process: subprocess.Popen, beginning: str) -> str | None:
    return next((line for line in process.stdout if line.startswith(beginning)), None)


def recorded(lines: str) -> set[str]:
    return {line.removeprefix("recorded ") for line in lines.splitlines() if line.startswith("recorded ")}


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes as Linux lists them")
@pytest.mark.parametrize("runs_before", [0, 1, 5])
def test_after_a_kill_the_same_command_gives_the_same_results(tmp_path, runs_before):
    """The whole process is killed in the middle of runs; its workers end by themselves."""
    with grid(tmp_path / "killed") as process:
        for _ in range(runs_before):
            assert next_line(process, "recorded ")
        assert next_line(process, "in the middle of ")
        workers = children_of(process.pid)
        process.kill()
        end_of(process)
    file = tmp_path / "killed" / "runs.jsonl"
    finished = {record.key for record in read_records(file)} if file.exists() else set()
    assert runs_before <= len(finished) < 12
    wait_until_all_end(workers)

    with grid(tmp_path / "killed") as process:
        made = recorded(end_of(process)[0])
    assert process.returncode == 0
    assert len(made | finished) == 12
    assert not made & finished

    with grid(tmp_path / "whole") as process:
        end_of(process)
    killed, whole = ({record.key: record for record in read_records(tmp_path / name)} for name in ("killed", "whole"))
    assert len(whole) == 12
    assert without_times(killed) == without_times(whole)


@pytest.mark.full
def test_processes_side_by_side_and_this_one_give_the_same_results(tmp_path):
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from digits_grid import WANTED
    finally:
        sys.path.remove(str(SCRIPT.parent))
    _, here = run(tmp_path / "here", WANTED)
    with grid(tmp_path / "workers") as process:
        end_of(process)
    assert process.returncode == 0
    workers = {record.key: record for record in read_records(tmp_path / "workers")}
    assert without_times(workers) == without_times(here)


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes as Linux lists them")
def test_ctrl_c_in_a_terminal_ends_all_processes(tmp_path):
    """A terminal sends the signal to every process of the command; workers leave it to the first."""
    with grid(tmp_path, start_new_session=True, stderr=subprocess.PIPE) as process:
        assert next_line(process, "recorded ")
        workers = children_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = end_of(process)
    assert errors.count("KeyboardInterrupt") == 1  # this script's own; no worker adds a trace
    assert workers
    wait_until_all_end(workers)
    assert 1 <= len(read_records(tmp_path)) < 12
