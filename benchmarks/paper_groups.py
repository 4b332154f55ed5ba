"""Runs of the paper's protocol made together, compared with the same runs each by itself: processor time of one run.

``python benchmarks/paper_groups.py [--only EXPERIMENT ...] [--preset quick] [--most N] [--workers N]`` makes the first
group that ``lit-gelu paper run`` would make of each experiment with so many workers, and the first and the last of its
runs alone, in one process and on one thread, evaluation and robustness included, start and reading of data not. It
prints the seconds of a run either way and their ratio. The data must be there (``LIT_GELU_DATA``).

On one core of a shared AMD EPYC (AVX2), at a load of 15 to 26 on four cores, a run in the first quick group took .21 of
the time of one alone for the tweets (4 runs) and .49 for MNIST (8 runs). On one core of a quiet AMD EPYC of 2017 (AVX2)
it was .31 and .64.
"""

import argparse
import logging
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from lit_gelu.paper.group_planning import GroupPlanner
from lit_gelu.paper.jobs import CellGroup, RunOptions
from lit_gelu.paper.planning import RunRequest
from lit_gelu.paper.training.cell_training import DataCache, train
from lit_gelu.paper.training.group_training import train_group


def seconds_of(make: Callable[[], Any]) -> float:
    """Return the processor time that something takes."""
    began = time.process_time()
    make()
    return time.process_time() - began


def compare(group: CellGroup, data: DataCache) -> tuple[float, float]:
    """Return the seconds of a run of a group, and of a run alone."""
    options, first, last = RunOptions(), group.cells[0], group.cells[-1]
    data.get(first.config["data"])  # read before the clock runs
    alone = [seconds_of(lambda cell=cell: train(cell, data, options, lambda _: None)) for cell in (first, last)]
    together = seconds_of(lambda: train_group(group, data, options, lambda _: None))
    return together / len(group.cells), sum(alone) / len(alone)


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each experiment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=["tweets", "mnist"], help="experiments")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--most", type=int, default=None, help="runs in a group; as the protocol by default")
    parser.add_argument("--workers", type=int, default=2, help="for which the groups are made")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    data = DataCache(None)
    for name in options.only:
        jobs = GroupPlanner(options.workers, options.most).jobs(RunRequest(options.preset, (name,)).first_cells())
        group = next((job for job in jobs if isinstance(job, CellGroup)), None)
        if group is None:
            print(f"{name}: no runs that are made together")
            continue
        together, alone = compare(group, data)
        runs = f"{name} ({options.preset}), {len(group.cells)} runs"
        print(
            f"{runs} together: {together:.2f} s a run, alone {alone:.2f} s: {together / alone:.2f} of the time "
            f"(load {os.getloadavg()[0]:.1f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
