"""In which order the elements of a tensor lie in memory: torch draws random numbers in that order."""

from collections.abc import Sequence

import torch
from torch import Tensor


def memory_order(tensor: Tensor) -> tuple[int, ...] | None:
    """Return a tensor's dimensions from the outermost in memory to the innermost; ``None`` where that is their order.

    What torch makes like a tensor lies in the same order, without gaps.
    """
    if tensor.is_contiguous():
        return None
    strides = torch.empty_like(tensor, device="meta").stride()
    order = tuple(sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], dim)))
    return None if order == tuple(range(tensor.ndim)) else order


def joined_as_they_lie(parts: Sequence[Tensor]) -> Tensor:
    """Return what ``torch.cat`` makes of tensors ``[replicas, ...]``, with elements in the order of a replica's."""
    order = memory_order(parts[0][0])
    if order is None:
        return torch.cat(list(parts))
    laid_out = torch.cat([part.permute(0, *(1 + dim for dim in order)) for part in parts])
    return laid_out.permute(0, *(1 + order.index(dim) for dim in range(len(order))))
