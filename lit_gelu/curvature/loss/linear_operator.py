"""A symmetric matrix that is known by its products with vectors, and random vectors to multiply it with."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


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


def _generator(seed: int, event: int, number: int, device: torch.device | str) -> torch.Generator:
    """Return a generator of its own, as the global ones belong to the training; neighbours have nothing in common."""
    (mixed,) = np.random.SeedSequence([seed % 2**64, event, number]).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(mixed) >> 1)


def rademacher(
    size: int, seed: int, event: int, number: int, *, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """Return a vector of independent signs, drawn on its device; equal arguments give equal vectors there."""
    generator = _generator(seed, event, number, device)
    octets = torch.empty((size + 7) // 8, dtype=torch.uint8, device=device).random_(0, 256, generator=generator)
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    bits = octets.unsqueeze(1).bitwise_right_shift(shifts).bitwise_and_(1)  # a draw serves eight elements
    return bits.flatten()[:size].to(dtype).mul_(2).sub_(1)


def normal(size: int, seed: int, event: int, number: int, *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return a vector of independent standard normal numbers; otherwise as `rademacher`."""
    return torch.empty(size, dtype=dtype, device=device).normal_(generator=_generator(seed, event, number, device))
