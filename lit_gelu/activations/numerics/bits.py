"""Eight truth values in a byte."""

import torch
from torch import Tensor


def packed(values: Tensor) -> Tensor:
    """Return the truth values of a tensor without gaps, in the order in which they lie in memory, eight in a byte."""
    flat = values.as_strided((values.numel(),), (1,)).view(torch.uint8)
    size = -(-flat.numel() // 8)
    found = torch.zeros(size, dtype=torch.uint8, device=values.device)
    for bit, part in enumerate(flat.split(max(size, 1))):  # an eighth of the tensor gives one bit of all bytes
        found[: part.numel()].bitwise_or_(part << bit)
    return found


def unpacked(found: Tensor, count: int) -> Tensor:
    """Return the first ``count`` truth values again, flat, as bytes 0 and 1."""
    flat = torch.empty(count, dtype=torch.uint8, device=found.device)
    for bit, part in enumerate(flat.split(max(found.numel(), 1))):
        part.copy_(found[: part.numel()] >> bit).bitwise_and_(1)
    return flat
