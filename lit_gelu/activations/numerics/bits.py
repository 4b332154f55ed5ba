"""Eight truth values in a byte."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

# Of eight bytes in an integer of 64 bits: every byte, bit i of byte i, and the factor that brings the lowest bit of
# byte i to bit i of the last byte, with no two of its products at the same place.
_BYTES = 0x0101010101010101
_DIAGONAL = 0x8040201008040201 - (1 << 64)
_GATHER = 0x0102040810204080
_BELOW = 0x7F7F7F7F7F7F7F7F


def packed(values: Tensor) -> Tensor:
    """Return the truth values of a tensor without gaps, in the order in which they lie in memory, eight in a byte."""
    flat = values.as_strided((values.numel(),), (1,)).view(torch.uint8)
    if flat.numel() % 8:
        flat = F.pad(flat, (0, -flat.numel() % 8))
    return ((flat.view(torch.int64) * _GATHER) >> 56).to(torch.uint8)


def unpacked(found: Tensor, count: int) -> Tensor:
    """Return the first ``count`` truth values again, flat, as bytes 0 and 1."""
    bits = found.to(torch.int64).mul_(_BYTES).bitwise_and_(_DIAGONAL)
    return (bits.add_(_BELOW) >> 7).bitwise_and_(_BYTES).view(torch.uint8)[:count]
