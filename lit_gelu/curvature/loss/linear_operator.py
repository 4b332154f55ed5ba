"""A symmetric matrix that is known by its products with vectors, and random vectors to multiply it with."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


class LinearOperator(Protocol):
    """A symmetric matrix that is known by its products with vectors."""

    size: int  # rows, and columns
    dtype: torch.dtype  # of its vectors
    device: torch.device  # of its vectors

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a vector, both of shape ``[size]``."""
        ...


class MatrixOperator:
    """A symmetric matrix in memory, ``[size, size]``, as an operator.

    Example:
        >>> MatrixOperator(torch.eye(2))(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.size = matrix.shape[0]
        self.dtype = matrix.dtype
        self.device = matrix.device

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a vector."""
        return self.matrix @ vector


def agreed_on(operator: LinearOperator) -> Callable[[Tensor], Tensor]:
    """Return what makes numbers the same on all ranks, so that these decide alike; of one rank, the identity."""
    agreed: Callable[[Tensor], Tensor] = getattr(operator, "agreed", lambda numbers: numbers)
    return agreed


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
    """Return a vector of independent signs, drawn on its device; equal arguments give equal vectors there."""
    # A generator of its own is used: the global ones belong to the training.
    generator = torch.Generator(device).manual_seed(mixed_seed(seed, event, number))
    octets = torch.empty((size + 7) // 8, dtype=torch.uint8, device=device).random_(0, 256, generator=generator)
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    bits = octets.unsqueeze(1).bitwise_right_shift(shifts).bitwise_and_(1)  # a draw serves eight elements
    return bits.flatten()[:size].to(dtype).mul_(2).sub_(1)


def normal(size: int, seed: int, event: int, number: int, *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return a vector of independent standard normal numbers; otherwise as `rademacher`."""
    generator = torch.Generator(device).manual_seed(mixed_seed(seed, event, number))
    return torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)
