"""What Ray's processes do for this package: a job each, saying on a board where and how far it is."""

import importlib
import os
from dataclasses import astuple, dataclass
from typing import Any

import torch

from gelu_paper.jobs import Failure, Job, Message, Preparation, RunOptions
from gelu_paper.pools.job_answer import answer, quieten
from gelu_paper.pools.ray_board import EPOCH, PLACE
from gelu_paper.training.cell_training import DataCache, versions

DATA_VARIABLE = "LIT_GELU_DATA"


@dataclass(frozen=True)
class Order:
    """A job as it travels to a node, with all that the process there has to know."""

    number: int  # no two orders of a pool have the same; a job that was lost is ordered again
    job: Job
    options: RunOptions
    preparations: tuple[Preparation, ...] = ()  # of its data: a node may have joined after they were made
    versions: dict[str, str] | None = None  # that are accepted; None for all
    data: str | None = None  # what DATA_VARIABLE is where a node does not have it


@dataclass(frozen=True)
class OtherVersions:
    """Instead of a job's end: the node has other versions than were accepted."""

    node: str
    found: dict[str, str]


_data: dict[str | None, DataCache] = {}  # of this process, which Ray gives one job after another
_prepared: set[str] = set()  # data that were found in order by this process


def work(order: Order, board: Any) -> Message | OtherVersions:
    """Do a job in a process of Ray's: the function that is made a task."""
    ray: Any = importlib.import_module("ray")
    node = ray.get_runtime_context().get_node_id()
    board.put.remote(order.number, PLACE, (node, os.getpid()))
    if order.versions is not None and (found := versions()) != order.versions:
        return OtherVersions(node, found)
    torch.set_num_threads(order.options.threads)
    quieten()
    if order.data is not None:
        os.environ.setdefault(DATA_VARIABLE, order.data)
    data = _data.setdefault(order.options.root, DataCache(order.options.root))
    return _prepare(order, data) or answer(
        order.job, data, order.options, lambda how_far: board.put.remote(order.number, EPOCH, astuple(how_far))
    )


def _prepare(order: Order, data: DataCache) -> Failure | None:
    """Look at a job's data before the first of its runs in this process; what is in order already takes no time."""
    for preparation in order.preparations:
        if preparation.data_name not in _prepared:
            message = answer(preparation, data, order.options, lambda _: None)
            if isinstance(message, Failure):
                return message
            _prepared.add(preparation.data_name)
    return None
