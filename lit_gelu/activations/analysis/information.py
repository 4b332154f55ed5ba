"""Where an activation loses information: the inputs that it maps to the same output."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.analysis.entropy import QuantisedEntropy, quantised_entropy
from lit_gelu.activations.analysis.pieces import FlatStretch, MonotonePieces
from lit_gelu.activations.analysis.scalar import ScalarActivation, checked_interval
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.naming.names import Names

__all__ = [
    "FlatStretch",
    "FlatStretchError",
    "PreimageCount",
    "QuantisedEntropy",
    "colliding_pair",
    "flat_stretches",
    "mean_derivative",
    "preimage_counts",
    "preimages",
    "quantised_entropy",
]


class FlatStretchError(ActivationArgumentError):
    """A question for single points where a whole stretch of inputs gives the same output."""


@dataclass(frozen=True)
class PreimageCount:
    """How many inputs give an output.

    Args:
        low: Outputs above this,
        high: and below this,
        count: have so many inputs.
    """

    low: float
    high: float
    count: int


def mean_derivative(spec: Any, low: float, high: float, *, registry: Names | None = None) -> float:
    """Compute the mean of ``f'`` over an interval: ``(f(high) - f(low)) / (high - low)``.

    Args:
        spec: Any spec, or a module.
        low: Where the interval begins.
        high: Where it ends.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The mean slope.

    Raises:
        ActivationArgumentError: If the interval is empty or infinite, or the activation not elementwise.

    Example:
        >>> round(mean_derivative("gelu", -3, 0), 5), round(mean_derivative("silu", -3, 0), 4)
        (0.00135, 0.0474)
    """
    low, high = checked_interval((low, high))
    f = ScalarActivation.of(spec, registry).functions[0]
    ends: Tensor = f(torch.tensor([low, high], dtype=torch.float64))
    return float((ends[1] - ends[0]) / (high - low))


def flat_stretches(
    spec: Any, interval: tuple[float, float] = (-12, 12), *, registry: Names | None = None
) -> tuple[FlatStretch, ...]:
    """Find where an activation is constant: the left half of ReLU, both ends of a hard sigmoid.

    In float64, that is: tails that have underflowed (GELU's below -38.6) are flat, too.

    Args:
        spec: Any spec, or a module.
        interval: Where to look.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The stretches, from left to right.

    Raises:
        ActivationArgumentError: If the interval is empty or infinite, or the activation not elementwise.

    Example:
        >>> [str(stretch) for stretch in flat_stretches("relu6")]
        ['[-12, 0] -> 0', '[6, 12] -> 6']
        >>> flat_stretches("gelu")
        ()
    """
    return MonotonePieces.of(spec, interval, registry).flat


def preimages(
    spec: Any, y: float, interval: tuple[float, float] = (-12, 12), *, registry: Names | None = None
) -> tuple[float, ...]:
    """Find all inputs that an activation maps to one output.

    Between its turning points the activation is monotone, so each piece has at most one; it is found by bisection.

    Args:
        spec: Any spec, or a module.
        y: The output.
        interval: Where to look.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The inputs, from left to right, to float64 precision; none if ``y`` is not in the range.

    Raises:
        FlatStretchError: If a whole stretch of inputs gives ``y``; see `flat_stretches`.
        ActivationArgumentError: If the interval is empty or infinite, or the activation not elementwise.

    Example:
        >>> [round(x, 8) for x in preimages("silu", -0.25)]
        [-1.86665123, -0.81452662]
        >>> preimages("silu", -0.3)
        ()
    """
    pieces = MonotonePieces.of(spec, interval, registry)
    for stretch in pieces.flat:
        if stretch.value == y:
            raise FlatStretchError(
                f"Every input in [{stretch.low:g}, {stretch.high:g}] gives {y:g}: there is no list of them. "
                "flat_stretches() gives such stretches; choose another output, or an interval without them."
            )
    found = [x for piece in pieces.monotone for x in pieces.solutions(piece, y)]
    return tuple(sorted(set(found)))


def preimage_counts(
    spec: Any, interval: tuple[float, float] = (-12, 12), *, registry: Names | None = None
) -> tuple[PreimageCount, ...]:
    """Count the inputs of each output over the activation's range.

    Args:
        spec: Any spec, or a module.
        interval: Where to look for inputs.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        Open intervals of outputs with their counts, from low to high. Outputs with infinitely many inputs are single
        values; `flat_stretches` names them.

    Raises:
        ActivationArgumentError: If the interval is empty or infinite, or the activation not elementwise.

    Example:
        >>> for row in preimage_counts("silu"):
        ...     print(f"{row.count} above {row.low:.4g} and below {row.high:.4g}")
        2 above -0.2785 and below -7.373e-05
        1 above -7.373e-05 and below 12
    """
    pieces = MonotonePieces.of(spec, interval, registry)
    spans = [sorted(pieces.ends(piece)) for piece in pieces.monotone]
    values = sorted({value for span in spans for value in span})
    rows: list[PreimageCount] = []
    for low, high in pairwise(values):
        count = sum(bottom <= low and high <= top for bottom, top in spans)
        if rows and rows[-1].count == count and rows[-1].high == low:
            rows[-1] = PreimageCount(rows[-1].low, high, count)
        elif count:
            rows.append(PreimageCount(low, high, count))
    return tuple(rows)


def colliding_pair(
    spec: Any, x: float, interval: tuple[float, float] = (-12, 12), *, registry: Names | None = None
) -> float | None:
    """Find another input that an activation maps to the output of ``x``.

    Args:
        spec: Any spec, or a module.
        x: An input within the interval.
        interval: Where to look.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The nearest other input with ``f(x') = f(x)``; ``None`` if there is none.

    Raises:
        FlatStretchError: If ``x`` lies in a flat stretch.
        ActivationArgumentError: If ``x`` is not within the interval, or as `preimages`.

    Example:
        >>> round(colliding_pair("silu", -2.0), 8), round(colliding_pair("gelu", -0.5), 8)
        (-0.73618791, -1.04929313)
        >>> colliding_pair("leaky_relu", -2.0) is None
        True
    """
    low, high = checked_interval(interval)
    if not low <= x <= high:
        raise ActivationArgumentError(
            f"x={x!r} is not within the interval from {low:g} to {high:g}. Widen the interval."
        )
    pieces = MonotonePieces.of(spec, interval, registry)
    y = pieces.f(torch.tensor([x], dtype=torch.float64)).item()
    for stretch in pieces.flat:
        if stretch.low <= x <= stretch.high:
            raise FlatStretchError(f"x={x:g} lies in a flat stretch: every input of {stretch} collides with it.")
    others = [
        other for piece in pieces.monotone if not piece[0] <= x <= piece[1] for other in pieces.solutions(piece, y)
    ]
    return min(others, key=lambda other: abs(other - x), default=None)
