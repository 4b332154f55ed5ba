"""An activation cut where it turns or is flat, so that every piece can be inverted."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.analysis.sampling import Function, bisect, sampling_grid, sign_changes
from lit_gelu.activations.analysis.scalar import ScalarActivation, checked_interval
from lit_gelu.activations.naming.names import Names

_NOTHING = 1e-14  # share of the largest |f'| below which its sign is rounding


@dataclass(frozen=True)
class FlatStretch:
    """Inputs that all give the same output.

    Args:
        low: The first of them.
        high: The last.
        value: The output.
    """

    low: float
    high: float
    value: float

    def __str__(self) -> str:
        return f"[{self.low:.7g}, {self.high:.7g}] -> {self.value:.7g}"


@dataclass(frozen=True)
class MonotonePieces:
    """An activation on an interval, cut into monotone and flat pieces.

    Args:
        f: The activation, a function of float64 tensors.
        monotone: The ends of the pieces on which it rises or falls, from left to right.
        flat: The pieces on which it is constant, from left to right.
    """

    f: Function
    monotone: tuple[tuple[float, float], ...]
    flat: tuple[FlatStretch, ...]

    @classmethod
    def of(cls, spec: Any, interval: tuple[float, float], registry: Names | None) -> "MonotonePieces":
        """Cut an activation where ``f'`` changes its sign, and where it begins and ends to be zero.

        Args:
            spec: Any spec, or a module.
            interval: From where to where.
            registry: Where names are looked up; by default `lit_gelu.activations.registry`.

        Returns:
            The pieces.

        Raises:
            ActivationArgumentError: If the interval is empty or infinite, or the activation not elementwise.

        Example:
            >>> MonotonePieces.of("relu", (-1, 1), None).monotone
            ((0.0, 1.0),)
        """
        low, high = checked_interval(interval)
        activation = ScalarActivation.of(spec, registry)
        (f, slope, _), kinks = activation.functions, activation.kinks
        grid = sampling_grid([slope], low, high, kinks)
        slopes = slope(grid)
        flat = _flat(f(grid), slopes, grid, kinks)
        turns = sign_changes(slope, grid, slopes, slopes.abs() > _NOTHING * slopes.abs().max())
        turns = [x for x in turns if not any(stretch.low <= x <= stretch.high for stretch in flat)]
        cuts = sorted({low, high, *turns, *(end for stretch in flat for end in (stretch.low, stretch.high))})
        levels = {(stretch.low, stretch.high) for stretch in flat}
        return cls(f, tuple(pair for pair in pairwise(cuts) if pair not in levels), flat)

    def ends(self, piece: tuple[float, float]) -> tuple[float, float]:
        """Return the values of the activation at both ends of a piece.

        Args:
            piece: Its ends.

        Returns:
            ``f`` there.
        """
        left, right = self.f(torch.tensor(piece, dtype=torch.float64)).tolist()
        return left, right

    def solutions(self, piece: tuple[float, float], y: float) -> list[float]:
        """Return the input in a monotone piece that gives ``y``.

        Args:
            piece: Its ends.
            y: The output.

        Returns:
            One input, or none.
        """
        bottom, top = sorted(self.ends(piece))
        if not bottom <= y <= top:
            return []
        ends = torch.tensor(piece, dtype=torch.float64)
        x = bisect(lambda x: self.f(x) - y, ends[:1], ends[1:])
        # A jump passes over y without taking it.
        taken = (self.f(x) - y).abs().item() <= 1e-9 * max(abs(bottom), abs(top))
        return [x.item() + 0.0] if taken else []


def _flat(values: Tensor, slopes: Tensor, grid: Tensor, kinks: tuple[float, ...]) -> tuple[FlatStretch, ...]:
    """Return the runs of grid points with one value and no slope."""
    same = (values.diff() == 0) & (slopes[1:] == 0) & (slopes[:-1] == 0)
    edges = torch.cat([same.new_zeros(1), same, same.new_zeros(1)]).int().diff()
    begins, ends = torch.nonzero(edges == 1).flatten(), torch.nonzero(edges == -1).flatten()

    def end(index: Tensor) -> float:
        x = float(grid[index])
        return next((k for k in kinks if math.isclose(x, k, rel_tol=1e-15, abs_tol=1e-300)), x)

    stretches = (FlatStretch(end(b), end(e), float(values[b]) + 0.0) for b, e in zip(begins, ends, strict=True))
    return tuple(stretch for stretch in stretches if stretch.low < stretch.high)
