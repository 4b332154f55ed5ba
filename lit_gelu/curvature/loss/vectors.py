"""Vectors as large as the model: random ones, and the budget for them."""

import torch
from torch import Tensor

from lit_gelu.curvature.errors import MemoryBudgetError

_MASK = (1 << 64) - 1


def mixed_seed(seed: int, event: int, number: int) -> int:
    """Mix a seed and two counters into one seed below 2^63, so that neighbours have nothing in common."""
    # The finaliser of SplitMix64, chained. Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
    # generators".
    state = 0
    for part in (seed, event, number):
        state = (state + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def rademacher(
    size: int, seed: int, event: int, number: int, *, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """Draw a vector of independent signs, +1 or -1 with probability 1/2 each, on its device.

    A generator of its own is used: the global ones belong to the training. Equal arguments give equal vectors on
    devices of one type; CPU and CUDA generators differ.

    Args:
        size: Elements.
        seed: Of the run.
        event: Which measurement.
        number: Which vector of it.
        dtype: Of the vector.
        device: Where it is drawn.

    Returns:
        Shape ``[size]``.

    Example:
        >>> v = rademacher(1000, 0, 0, 0, dtype=torch.float32, device="cpu")
        >>> v.unique().tolist()
        [-1.0, 1.0]
    """
    generator = torch.Generator(device).manual_seed(mixed_seed(seed, event, number))
    octets = torch.empty((size + 7) // 8, dtype=torch.uint8, device=device).random_(0, 256, generator=generator)
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    bits = octets.unsqueeze(1).bitwise_right_shift(shifts).bitwise_and_(1)  # a draw serves eight elements
    return bits.flatten()[:size].to(dtype).mul_(2).sub_(1)


def normal(size: int, seed: int, event: int, number: int, *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Draw a vector of independent standard normal numbers; otherwise as `rademacher`.

    Args:
        size: Elements.
        seed: Of the run.
        event: Which measurement.
        number: Which vector of it.
        dtype: Of the vector.
        device: Where it is drawn.

    Returns:
        Shape ``[size]``.

    Example:
        >>> normal(3, 0, 0, 0, dtype=torch.float32, device="cpu").shape
        torch.Size([3])
    """
    generator = torch.Generator(device).manual_seed(mixed_seed(seed, event, number))
    return torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)


def check_memory(vectors: int, size: int, dtype: torch.dtype, max_memory_mb: float | None, remedy: str) -> None:
    """Refuse to keep more vectors than the budget (in MiB) allows, before any exists; ``remedy`` is a sentence."""
    needed = vectors * size * dtype.itemsize / 2**20
    if max_memory_mb is not None and needed > max_memory_mb:
        name = str(dtype).removeprefix("torch.")
        raise MemoryBudgetError(
            f"{vectors} vectors of {size} {name} take {needed:.1f} MiB, and max_memory_mb={max_memory_mb} allows "
            f"{max_memory_mb:.1f}. {remedy}"
        )
