"""Runs a small grid on the digits in worker processes or by Ray: a script, because a process is killed in its midst."""

import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from paper_runs import DIGITS, SHARING, Log, request

import gelu_paper.training.group_recorder
from gelu_paper.grid_runner import Runner
from gelu_paper.group_planning import GroupPlanner
from gelu_paper.jobs import RunOptions
from gelu_paper.pools.job_pool import JobPool
from gelu_paper.pools.worker_pool import WorkerPool
from gelu_paper.records.run_store import RecordStore

WANTED = request(replace(DIGITS, epochs=12), replace(SHARING, epochs=12))


class Lines(Log):
    """Says what is going on, so that whoever kills this process knows when."""

    def __init__(self, *, pauses: bool) -> None:
        super().__init__()
        self.pauses = pauses

    def progressed(self, job, epoch) -> None:
        print("in the middle of", job.key, flush=True)  # noqa: T201 - it is a script

    def recorded(self, record) -> None:
        print("recorded", record.key, flush=True)  # noqa: T201 - it is a script
        if self.pauses:
            self.pauses = False
            sys.stdin.readline()

    def retried(self, group, failure, *, goes_on) -> None:
        print("retried", goes_on, failure.message, flush=True)  # noqa: T201 - it is a script


if os.environ.get("OFTEN"):  # in the workers too, which import this file
    gelu_paper.training.group_recorder.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    gelu_paper.training.group_recorder.SECONDS_BETWEEN_REPORTS = -1.0


def pool_of(engine: str, folder: str) -> JobPool:
    options = RunOptions(groups=str(Path(folder).absolute() / ".groups"))
    if engine == "processes":
        return WorkerPool(2, options)
    from gelu_paper.pools.ray_pool import RayPool

    return RayPool(options, jobs=2, logs=Path(folder) / "ray")


if __name__ == "__main__":
    folder, words = sys.argv[1], set(sys.argv[2:])  # of "ray", "together" and "pause"
    with RecordStore(folder) as store, pool_of("ray" if "ray" in words else "processes", folder) as pool:
        planner = GroupPlanner(2) if "together" in words else None
        Runner(WANTED, store, pool, Lines(pauses="pause" in words), grouping=planner).run()
