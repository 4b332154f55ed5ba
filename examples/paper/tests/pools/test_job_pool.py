"""The contract of all pools: what starts, what is said of it, what ends. Ray's runs on simulated nodes."""

import os
import signal
import sys
from dataclasses import replace

import pytest
from child_processes import is_running, wait_until
from paper_runs import DIGITS

from gelu_paper.jobs import Done, Failure, Preparation, Progress, RunOptions
from gelu_paper.pools.worker_pool import WorkerPool
from gelu_paper.protocol.cells import expand

DATA = {"class_path": "lit_gelu.data.DigitsData", "init_args": {}}
ENGINES = ["processes", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.full])]
LONG = expand(replace(DIGITS, epochs=2000, evaluations=1), "quick")[0]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes as Linux shows them")


@pytest.fixture(scope="module", params=ENGINES)
def pool(request):
    """A pool for two jobs that begins none of them again."""
    if request.param == "processes":
        made = WorkerPool(2, RunOptions())
    else:
        nodes = request.getfixturevalue("ray_cluster")
        from gelu_paper.pools.ray_pool import RayPool

        made = RayPool(RunOptions(), address=nodes.address, retries=0)
    with made as pool:
        yield pool


def processes_of(pool) -> list[int]:
    """Return the processes that jobs are known to be done in."""
    if isinstance(pool, WorkerPool):
        return [worker.process.pid for worker in pool._processes if worker.job is not None]
    return [task.place[1] for task in pool._tasks.values() if task.place is not None]


def heard(pool) -> list:
    """Return what is said until no job is running."""
    said = []
    wait_until(lambda: said.extend(pool.wait(1.0)) or not pool.running, "no job is running")
    return said


def wait_for_progress(pool) -> None:
    wait_until(lambda: any(isinstance(message, Progress) for _, message in pool.wait(1.0)), "a job is on its way")


@pytest.mark.full
def test_room_and_a_preparation(pool):
    assert (pool.workers, pool.running, pool.has_room) == (2, 0, True)
    assert list(pool.wait(0.01)) == []
    jobs = [Preparation(f"digits {number}", DATA) for number in range(2)]
    pool.expect(len(jobs))
    assert (pool.running, pool.has_room) == (0, True)
    pool.start(jobs[0])
    assert (pool.running, pool.has_room) == (1, True)
    pool.start(jobs[1])
    assert (pool.running, pool.has_room) == (2, False)
    said = heard(pool)
    assert sorted(job.key for job, _ in said) == ["digits 0", "digits 1"]
    assert all(isinstance(message, Done) for _, message in said)
    assert (pool.running, pool.has_room) == (0, True)


def test_runs_say_how_far_they_are_and_give_their_records(pool):
    cells = expand(DIGITS, "quick")[:2]
    for cell in cells:
        pool.start(cell)
    said = heard(pool)
    for cell in cells:
        *before, last = [message for job, message in said if job.key == cell.key]
        assert all(isinstance(message, Progress) and 0 < message.epoch <= DIGITS.epochs for message in before)
        assert isinstance(last, Done)
        assert cell.key in str(last)
        assert "'threads': 1" in str(last)


def test_mistakes_of_a_job_come_back_and_the_next_one_is_made(pool, tmp_path):
    cell = expand(DIGITS, "quick")[0]
    model = {**cell.config["model"], "class_path": "lit_gelu.tasks.NoSuchTask"}
    pool.start(replace(cell, key="no class", config={**cell.config, "model": model}))
    elsewhere = {"class_path": "lit_gelu.data.MNISTData", "init_args": {"root": str(tmp_path)}}
    pool.start(Preparation("no data", elsewhere))
    failures = {job.key: message for job, message in heard(pool)}
    assert {key: failure.kind for key, failure in failures.items()} == {"no class": "error", "no data": "missing"}
    assert "lit_gelu.tasks.NoSuchTask" in failures["no class"].message
    assert str(tmp_path) in failures["no data"].message
    pool.start(Preparation("digits", DATA))
    assert [isinstance(message, Done) for _, message in heard(pool)] == [True]


def test_a_killed_process_is_said_and_the_others_go_on(pool):
    pool.start(LONG)
    wait_for_progress(pool)
    (process,) = processes_of(pool)
    os.kill(process, signal.SIGKILL)
    job, failure = heard(pool)[-1]
    assert job is LONG
    assert isinstance(failure, Failure)
    assert failure.kind == "lost"
    assert "often for want of memory: give fewer --workers" in failure.message
    pool.start(Preparation("digits", DATA))
    assert [isinstance(message, Done) for _, message in heard(pool)] == [True]


def test_nothing_goes_on_after_the_block(pool):
    """The last test of its pool: the block is left here, and once more by the fixture."""
    pool.start(LONG)
    wait_for_progress(pool)
    (process,) = processes_of(pool)
    assert is_running(process)
    pool.__exit__(None, None, None)
    wait_until(lambda: not is_running(process), "the process has ended")
    assert pool.running == 0
