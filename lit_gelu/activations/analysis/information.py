"""Where an activation loses information: inputs with the same output, and the entropy of rounded outputs."""

import math
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.scalar import ScalarActivation, checked_interval
from lit_gelu.activations.numerics.sampling import Function, bisect, jumps, sampling_grid, sign_changes

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

_NOTHING = 1e-14  # share of the largest |f'| below which its sign is rounding
_MOST_INPUTS = 20_000_000
_NORMAL_REACH = 8.0  # standard deviations; 1e-15 of the mass of a normal distribution lies beyond


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


@dataclass(frozen=True)
class QuantisedEntropy:
    """Entropy of an activation's input and output, both rounded.

    Args:
        input_bits: Entropy of the rounded input.
        output_bits: Entropy of the rounded output; no larger.
        distinct_inputs: How many different inputs there are.
        distinct_outputs: How many different outputs.
    """

    input_bits: float
    output_bits: float
    distinct_inputs: int
    distinct_outputs: int

    @property
    def lost_bits(self) -> float:
        """What cannot be told of the input from the output: the conditional entropy."""
        return self.input_bits - self.output_bits


def quantised_entropy(
    spec: Any,
    step: float,
    interval: tuple[float, float] | None = None,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    input_step: float | None = None,
    registry: Names | None = None,
) -> QuantisedEntropy:
    """Compute how many bits of a rounded input are left in the rounded output of an activation.

    The input takes the values ``k * input_step`` with the probabilities of a normal variable rounded to them, or, given
    an interval, the values ``low + k * input_step`` in it with equal probabilities; the output is rounded to multiples
    of ``step``. As the output is a function of the input, the difference of the two entropies is what is lost, by
    collisions of distant inputs and by slopes below one alike.

    Args:
        spec: Any spec, or a module.
        step: The grid of the output.
        interval: Where the input is uniform; by default it is normal.
        mean: Of the normal input.
        std: Of the normal input.
        input_step: The grid of the input; by default ``step``.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        Both entropies in bits, and how many values each takes.

    Raises:
        ActivationArgumentError: If a step or ``std`` is not positive, the interval empty or infinite, there would be
            more than 20 million inputs, or the activation is not elementwise.

    Example:
        >>> relu, gelu = (quantised_entropy(name, 2**-8) for name in ("relu", "gelu"))
        >>> round(relu.input_bits, 3), round(relu.lost_bits, 3), round(gelu.lost_bits, 3)
        (10.047, 4.531, 2.113)
    """
    input_step = step if input_step is None else input_step
    if not (0 < step < math.inf and 0 < input_step < math.inf and 0 < std < math.inf and math.isfinite(mean)):
        raise ActivationArgumentError(
            f"step={step!r}, input_step={input_step!r}, mean={mean!r}, std={std!r}: steps and std must be positive "
            "numbers, and mean a finite one."
        )
    x, probabilities = _normal(mean, std, input_step) if interval is None else _uniform(interval, input_step)
    y = ScalarActivation.of(spec, registry).functions[0](x)
    if not bool(y.isfinite().all()):
        raise ActivationArgumentError(
            f"The output is not finite at {x[~y.isfinite()][0].item():g}. Choose other inputs."
        )
    _, output = torch.unique(torch.round(y / step) + 0.0, return_inverse=True)
    merged = torch.zeros(int(output.max()) + 1, dtype=torch.float64).index_add_(0, output, probabilities)
    return QuantisedEntropy(_entropy(probabilities), _entropy(merged), len(x), len(merged))


def _entropy(probabilities: Tensor) -> float:
    return float(torch.special.entr(probabilities).sum() / math.log(2)) + 0.0


def _uniform(interval: tuple[float, float], step: float) -> tuple[Tensor, Tensor]:
    """Return equally probable inputs."""
    low, high = checked_interval(interval)
    count = _checked_count((high - low) / step)
    x = low + step * torch.arange(count, dtype=torch.float64)
    return x, torch.full_like(x, 1 / count)


def _normal(mean: float, std: float, step: float) -> tuple[Tensor, Tensor]:
    """Return the multiples of ``step`` and the probabilities that a normal variable is rounded to them."""
    first = math.floor((mean - _NORMAL_REACH * std) / step)
    x = step * (first + torch.arange(_checked_count(2 * _NORMAL_REACH * std / step) + 1, dtype=torch.float64))
    u, half = (x - mean) / std, step / (2 * std)
    # Tails are differences of the smaller of the two probabilities, which keeps their digits.
    lower, upper = torch.where(u > 0, -u - half, u - half), torch.where(u > 0, -u + half, u + half)
    probabilities = torch.special.ndtr(upper) - torch.special.ndtr(lower)
    kept = probabilities > 0
    return x[kept], probabilities[kept] / probabilities.sum()


def _checked_count(steps: float) -> int:
    if steps >= _MOST_INPUTS:
        raise ActivationArgumentError(
            f"That is {steps:.3g} inputs; at most {_MOST_INPUTS:,} are accepted. Choose a larger input_step."
        )
    return math.floor(steps * (1 + 1e-12)) + 1


@dataclass(frozen=True)
class MonotonePieces:
    """An activation on an interval, cut into monotone and flat pieces, from left to right."""

    f: Function
    monotone: tuple[tuple[float, float], ...]
    flat: tuple[FlatStretch, ...]

    @classmethod
    def of(cls, spec: Any, interval: tuple[float, float], registry: Names | None) -> "MonotonePieces":
        """Cut an activation where ``f'`` changes its sign, and where it begins and ends to be zero."""
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
        passed = jumps(f, slope, torch.cat([grid, torch.tensor(cuts, dtype=torch.float64)]).sort().values)
        pieces = (_cut(piece, passed) for piece in pairwise(cuts) if piece not in levels)
        return cls(f, tuple(chain.from_iterable(pieces)), flat)

    def ends(self, piece: tuple[float, float]) -> tuple[float, float]:
        """Return the values of the activation at both ends of a piece."""
        left, right = self.f(torch.tensor(piece, dtype=torch.float64)).tolist()
        return left, right

    def solutions(self, piece: tuple[float, float], y: float) -> list[float]:
        """Return the input in a monotone piece that gives ``y``: one, or none."""
        bottom, top = sorted(self.ends(piece))
        if not bottom <= y <= top:
            return []
        if piece[0] <= 0.0 <= piece[1] and self.f(torch.zeros(1, dtype=torch.float64)).item() == y:
            return [0.0]  # near it f underflows, or rounds to y as well
        ends = torch.tensor(piece, dtype=torch.float64)
        x = bisect(lambda x: self.f(x) - y, ends[:1], ends[1:])
        # A jump passes over y without taking it.
        taken = (self.f(x) - y).abs().item() <= 1e-9 * max(abs(bottom), abs(top))
        return [x.item() + 0.0] if taken else []


def _cut(piece: tuple[float, float], passed: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the parts of a piece between the jumps in it, given as neighbouring numbers."""
    low, high = piece
    inner = (pair for pair in passed if low <= pair[0] and pair[1] <= high)
    ends = [low, *(end for pair in inner for end in pair), high]
    return [(left, right) for left, right in zip(ends[::2], ends[1::2], strict=True) if left < right]


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
