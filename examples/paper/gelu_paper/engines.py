"""What makes several runs at a time: processes on this machine, or Ray on this and others."""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from typing import Any

from gelu_paper.cells import Cell
from gelu_paper.records import RunRecord
from gelu_paper.training import RunOptions, train
from lit_gelu.errors import MissingExtraError, UnsupportedRunError

Outcome = tuple[Cell, RunRecord | Exception]


def by_processes(cells: Sequence[Cell], options: RunOptions, workers: int) -> Iterator[Outcome]:
    """Make runs in processes of this machine, and yield each with its record or with what went wrong.

    Args:
        cells: The runs, begun in this order.
        options: Where and on what they are made.
        workers: How many at a time.

    Yields:
        Runs in the order in which they end.

    Raises:
        UnsupportedRunError: If a process died.
    """
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        futures = {pool.submit(train, cell, options): cell for cell in cells}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    raise UnsupportedRunError(
                        "A process that trained a run died, often for want of memory. Give fewer --workers; the same "
                        "command goes on behind the finished runs."
                    ) from error
                yield futures[future], error if isinstance(error, Exception) else future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def by_ray(
    cells: Sequence[Cell], options: RunOptions, workers: int | None, address: str | None, gpus: float
) -> Iterator[Outcome]:
    """Make runs by Ray, and yield each with its record or with what went wrong.

    Args:
        cells: The runs.
        options: Where and on what they are made.
        workers: How many at a time where Ray is started here; a cluster makes as many as it has room for.
        address: Of the cluster to join, as ``ray.init`` takes it; ``None`` starts Ray on this machine.
        gpus: How many GPUs a run has for itself: a share below 1, or 0 for none.

    Yields:
        Runs in the order in which they end. One whose process or machine was lost was begun again, at most twice.

    Raises:
        MissingExtraError: If Ray is not installed.
        UnsupportedRunError: If it cannot be started or joined.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise Ray's processes run at niceness 15 and starve beside other work.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            f"--engine ray needs Ray, which cannot be imported ({error}). Install it: pip install 'ray>=2.50'."
        ) from error
    here: dict[str, Any] = {
        "num_cpus": (workers or 1) * options.threads,
        "include_dashboard": False,
    }  # a cluster has its own
    try:
        ray.init(address=address or "local", log_to_driver=False, **({} if address else here))
    except (OSError, RuntimeError, ValueError) as error:
        raise UnsupportedRunError(f"Ray did not start, or its cluster {address!r} cannot be joined: {error}") from error
    try:
        task = ray.remote(num_cpus=options.threads, num_gpus=gpus, max_retries=2)(train)
        running = {task.remote(cell, options): cell for cell in cells}
        while running:
            (done,), _ = ray.wait(list(running))
            cell = running.pop(done)
            try:
                yield cell, ray.get(done)
            except ray.exceptions.RayError as error:
                yield cell, error
    finally:
        ray.shutdown()


def _end_with_parent() -> None:
    """Let a worker end when the command was killed: it would wait for its next run for ever."""
    parent = parent_process()
    if parent is not None:

        def wait(sentinel: int = parent.sentinel) -> None:
            connection.wait([sentinel])
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()
