"""How far two activations lie apart, in f, f' and f'', and where."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.scalar import ScalarActivation, checked_interval
from lit_gelu.activations.numerics.sampling import Function, bisect, sampling_grid
from lit_gelu.display import Displayed, HtmlTable
from lit_gelu.errors import ArgumentError

_EPSILON = torch.finfo(torch.float64).eps
_ROUNDING = 16 * _EPSILON  # two values that differ by less than this share are equal
_FOOT = 1e-5  # a hill's feet are lower than its top by this share: about 1/300 of its width away
_NEARLY = 0.99  # hills whose top on the grid is lower than this share cannot hold the largest difference
_WIDE = 1e-3  # share of the interval from which on equal values are a stretch and not the rounded top of a hill
_MOST_HILLS = 200  # of equal height; a difference that oscillates has more, and then the first of them are named


@dataclass(frozen=True)
class LargestDifference:
    """The largest absolute difference of two functions on an interval.

    Args:
        largest: Its size.
        places: All single points where it occurs, also where it is only approached, at a jump.
        stretches: ``(from, to)`` wherever the difference has its largest size on a whole stretch.
    """

    largest: float
    places: tuple[float, ...] = ()
    stretches: tuple[tuple[float, float], ...] = ()

    def __str__(self) -> str:
        where = [f"{x:.7g}" for x in self.places] + [f"all of [{a:.7g}, {b:.7g}]" for a, b in self.stretches]
        return f"{self.largest:.7g} at {', '.join(where)}"


@dataclass(frozen=True, repr=False)
class ActivationComparison(Displayed):
    """How far two activations lie apart.

    Args:
        a: The first, as the text of its spec.
        b: The second.
        interval: Where they were compared.
        value: ``sup |f_a - f_b|``.
        slope: ``sup |f_a' - f_b'|``.
        curvature: ``sup |f_a'' - f_b''|``.
    """

    a: str
    b: str
    interval: tuple[float, float]
    value: LargestDifference
    slope: LargestDifference
    curvature: LargestDifference

    def __str__(self) -> str:
        low, high = self.interval
        rows = {"f": self.value, "f'": self.slope, "f''": self.curvature}
        lines = [f"  largest |difference of {name + '|':4} {row}" for name, row in rows.items()]
        return "\n".join([f"{self.a} and {self.b} on [{low:g}, {high:g}]", *lines])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data for JSON."""
        return asdict(self)

    def _summary(self) -> str:
        figures = f"f {self.value.largest:.4g}, f' {self.slope.largest:.4g}, f'' {self.curvature.largest:.4g}"
        return f"{str(self).splitlines()[0]}: {figures}"

    def _html_table(self) -> HtmlTable:
        named = {"f": self.value, "f'": self.slope, "f''": self.curvature}
        rows = [(name, one.largest, str(one).partition(" at ")[2]) for name, one in named.items()]
        return HtmlTable(("of", "largest difference", "at"), rows, str(self).splitlines()[0])


def compare(
    a: Any, b: Any, interval: tuple[float, float] = (-12, 12), *, registry: Names | None = None
) -> ActivationComparison:
    """Compute the largest differences of two activations, and of their first and second derivatives.

    A grid (`numerics.sampling.sampling_grid`) finds the hills of the difference; the top of each is where its
    derivative vanishes, found by bisection. For ``f''`` that derivative is a sixth-order central difference. Kinks and
    jumps are looked at from both sides.

    Args:
        a: Any spec, or a module, whose parameters are then used as they are now.
        b: The other.
        interval: From where to where; finite.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        Sizes, good to float64 rounding, and places, good to about 1e-12 (``f''``: 1e-10).

    Raises:
        ArgumentError: If the interval is empty or infinite, or one of the two is not elementwise, or not finite there.

    Example:
        >>> result = compare("gelu", "gelu_tanh")
        >>> print(result.value)
        0.0004732355 at -2.698941, 2.698941
        >>> print(compare("relu", "leaky_relu", (-1, 1)))
        relu and leaky_relu on [-1, 1]
          largest |difference of f|   0.01 at -1
          largest |difference of f'|  0.01 at all of [-1, 0]
          largest |difference of f''| 0 at all of [-1, 1]
    """
    low, high = checked_interval(interval)
    first, second = ScalarActivation.of(a, registry), ScalarActivation.of(b, registry)
    corners = sorted({place for place, _ in (*first.kinks, *second.kinks)})
    pairs = list(zip(first.functions, second.functions, strict=True))
    for f in pairs[0]:
        _check_finite(f, torch.linspace(low, high, 1001, dtype=torch.float64))
    grid = sampling_grid(pairs[1], low, high, corners)
    slopes = [_difference(pairs[1]), _difference(pairs[2]), None]
    rows = [_largest(pair, slope, grid, corners) for pair, slope in zip(pairs, slopes, strict=True)]
    return ActivationComparison(first.spec, second.spec, (low, high), *rows)


def _difference(pair: tuple[Function, Function]) -> Function:
    return lambda x: pair[0](x) - pair[1](x)


def _check_finite(f: Function, x: Tensor) -> None:
    """Refuse a function that is not finite on all of ``x``: its difference from another would be undefined."""
    bad = x[~f(x).isfinite()]
    if len(bad):
        raise ArgumentError(f"An activation is not finite at {bad[0].item():g}. Choose an interval without that place.")


def _largest(
    pair: tuple[Function, Function], slope: Function | None, grid: Tensor, corners: Sequence[float]
) -> LargestDifference:
    """Return the largest difference of two functions, given the derivative of the difference."""
    for function in pair:
        _check_finite(function, grid)
    a, b = pair[0](grid), pair[1](grid)
    sizes = (a - b).abs()
    doubt = _ROUNDING * (torch.maximum(a.abs(), b.abs()) + sizes.max())
    tops, stretches = [], []
    special = (*corners, 0.0)
    for left, top, right in _hills(sizes):
        begin, end = _level(sizes >= sizes[top] - doubt, top)
        if grid[end] - grid[begin] > _WIDE * (grid[-1] - grid[0]):
            ends = [grid[index].item() for index in (begin, end)]
            for number, x in enumerate(ends):  # a neighbour of a special place is that place
                near = (place for place in special if math.isclose(x, place, rel_tol=4 * _EPSILON, abs_tol=1e-300))
                ends[number] = next(near, x)
            stretches.append((*ends, sizes[top].item()))
            continue
        place, size = _refined(_difference(pair), slope, grid[[left, top, right]])
        # A top that reaches the grid points around a corner, or around zero, is put there: the grid has both sides.
        around = grid[max(begin - 1, 0)].item(), grid[min(end + 1, len(grid) - 1)].item()
        place = next((x for x in special if around[0] <= x <= around[1]), place)
        tops.append((place, size, doubt[top].item()))
    largest, allowed = max([*((size, margin) for _, size, margin in tops), *((size, 0.0) for *_, size in stretches)])
    return LargestDifference(
        largest,
        tuple(sorted({x for x, size, margin in tops if size >= largest - allowed - margin})),
        tuple(sorted({(x, y) for x, y, size in stretches if size >= largest - allowed - doubt.max().item()})),
    )


def _hills(sizes: Tensor) -> Iterator[tuple[int, int, int]]:
    """Give the foot, the top and the other foot of every hill that may be the highest, as indices."""
    before = torch.cat([sizes.new_full((1,), -math.inf), sizes[:-1]])
    after = torch.cat([sizes[1:], sizes.new_full((1,), -math.inf)])
    tops = torch.nonzero((sizes >= before) & (sizes >= after) & (sizes >= _NEARLY * sizes.max())).flatten()
    taken = torch.zeros(len(sizes), dtype=torch.bool)
    count = 0
    for top in tops[sizes[tops].argsort(descending=True, stable=True)].tolist():
        if taken[top] or count == _MOST_HILLS:
            continue
        left, right = _level(sizes >= sizes[top] * (1 - _FOOT), top)
        taken[left : right + 1] = True
        count += 1
        yield max(left - 1, 0), top, min(right + 1, len(sizes) - 1)


def _level(inside: Tensor, index: int) -> tuple[int, int]:
    """Return the first and the last index of the run of true values around ``index``."""
    outside = torch.nonzero(~inside).flatten()
    position = int(torch.searchsorted(outside, index))
    first = int(outside[position - 1]) + 1 if position else 0
    last = int(outside[position]) - 1 if position < len(outside) else len(inside) - 1
    return first, last


def _refined(difference: Function, slope: Function | None, hill: Tensor) -> tuple[float, float]:
    """Return the place and the height of the top of a hill of ``|difference|``, given its feet and top on the grid."""
    left, top, right = hill[0:1], hill[1:2], hill[2:3]
    rising = slope or _central(difference, (right - left) / 4)
    signs = rising(torch.cat([left, right])) * difference(top).sign()
    candidates = torch.cat([top, bisect(rising, left, right)]) if signs[0] > 0 > signs[1] else top
    sizes = difference(candidates).abs()
    # Where the top is a corner, bisection may have followed another sign change.
    best = -1 if sizes[-1] >= sizes[0] * (1 - _ROUNDING) - _ROUNDING * _EPSILON else 0
    return candidates[best].item(), sizes.max().item()


def _central(g: Function, step: Tensor) -> Function:
    """Return the sixth-order central difference of ``g``, without its factor 60 ``step``."""
    return lambda x: (
        45 * (g(x + step) - g(x - step)) - 9 * (g(x + 2 * step) - g(x - 2 * step)) + g(x + 3 * step) - g(x - 3 * step)
    )
