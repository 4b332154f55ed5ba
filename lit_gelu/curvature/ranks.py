"""What the ranks of a run tell each other."""

from typing import Any

import torch
from torch import Tensor


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all ranks: one all-reduce, without the barrier that ``strategy.reduce`` adds."""
    if is_one_of_several():
        torch.distributed.all_reduce(tensor)
    return tensor


def maximum_over_ranks(tensor: Tensor) -> Tensor:
    """Return the elementwise maximum of a tensor over all ranks; one all-reduce. It is overwritten."""
    if is_one_of_several():
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
    return tensor


def is_one_of_several() -> bool:
    """Return whether this process is one of a group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def gathered(item: Any) -> list[Any]:
    """Return an object of every rank, in their order; to be called on all of them."""
    if not is_one_of_several():
        return [item]
    objects = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(objects, item)
    return objects
