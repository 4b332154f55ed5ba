"""Histograms of pre-activations with fixed bins, so that counts add up over calls, ranks and time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.errors import ArgumentError
from lit_gelu.numbers_given import is_count, is_number


@dataclass(frozen=True)
class HistogramBins:
    """Equal bins between two numbers, and one on each side for what lies beyond.

    Args:
        low: Where the first begins.
        high: Where the last ends.
        bins: How many.

    Raises:
        ArgumentError: If there is no bin.

    Example:
        >>> bins = HistogramBins(-2.0, 2.0, 4)
        >>> bins.count(torch.tensor([[-9.0, -1.5, 0.0, 0.5, 2.0, float("nan")]])).tolist()
        [[1.0, 1.0, 0.0, 2.0, 0.0, 1.0]]
    """

    low: float = -8.0
    high: float = 8.0
    bins: int = 64

    def __post_init__(self) -> None:
        ends = is_number(self.low) and is_number(self.high)
        if not (ends and self.low < self.high and is_count(self.bins, 1)):
            raise ArgumentError(
                f"{self!r} has no bins. Give finite numbers low < high and a positive integer, such as "
                "HistogramBins(-8, 8, 64)."
            )

    @property
    def edges(self) -> list[float]:
        """The ``bins + 1`` ends of the bins; what lies beyond has none."""
        ends: list[float] = torch.linspace(self.low, self.high, self.bins + 1, dtype=torch.float64).tolist()
        return ends

    def count(self, x: Tensor) -> Tensor:
        """Count the finite elements in each bin.

        Args:
            x: ``[sites, ...]``.

        Returns:
            ``[sites, bins + 2]``, float64 (float32 on ``mps``): below, the bins, above. A bin holds its lower end.
        """
        flat = x.flatten(1)
        finite = flat.abs() < torch.inf
        wide = torch.float32 if x.device.type == "mps" else torch.float64
        scaled = (torch.where(finite, flat, 0.0).to(wide) - self.low) * (self.bins / (self.high - self.low))
        index = scaled.floor().clamp_(-1, self.bins).long() + 1
        counts = torch.zeros(len(flat), self.bins + 2, dtype=wide, device=x.device)
        return counts.scatter_add_(1, index, finite.to(wide))
