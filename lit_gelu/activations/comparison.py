"""How far two activations lie apart, in f, f' and f'', and where."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.sampling import Function, bisect, sampling_grid, scalar_functions

if TYPE_CHECKING:
    from lit_gelu.activations.registry import ActivationRegistry

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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data for JSON.

        Returns:
            Numbers and lists.
        """
        return {"largest": self.largest, "places": [*self.places], "stretches": [[*pair] for pair in self.stretches]}


@dataclass(frozen=True)
class ActivationComparison:
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
        """Return the fields as plain data for JSON.

        Returns:
            Texts, numbers, lists, and a mapping for each difference.
        """
        differences = {name: getattr(self, name).to_dict() for name in ("value", "slope", "curvature")}
        return {"a": self.a, "b": self.b, "interval": [*self.interval], **differences}


def compare(
    a: Any, b: Any, interval: tuple[float, float] = (-12, 12), *, registry: "ActivationRegistry | None" = None
) -> ActivationComparison:
    """Compute the largest differences of two activations, and of their first and second derivatives.

    A grid (`lit_gelu.activations.sampling.sampling_grid`) finds the hills of the difference; the top of each is where
    the derivative of the difference vanishes, found by bisection. For ``f''`` that derivative is a sixth-order central
    difference. Kinks and jumps are looked at from both sides.

    Args:
        a: Any spec, or a module, whose parameters are then used as they are now.
        b: The other.
        interval: From where to where; finite.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        Sizes, good to float64 rounding, and places, good to about 1e-12 (``f''``: 1e-10).

    Raises:
        ActivationArgumentError: If the interval is empty or infinite, or one of the two is not elementwise, or not
            finite there.

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
    from lit_gelu.activations.default import registry as default  # the registry itself imports this package

    registry = registry or default
    low, high = checked_interval(interval)
    specs = [registry.resolve(spec) for spec in (a, b)]
    corners = sorted({x for spec in specs for x in kinks_of(spec, registry)})
    first, second = (scalar_functions(registry.create(spec), registry=registry) for spec in (a, b))
    grid = sampling_grid([first[1], second[1]], low, high, corners)
    differences = [
        _largest((first[order], second[order]), _slope(first, second, order), grid, corners) for order in range(3)
    ]
    return ActivationComparison(str(specs[0]), str(specs[1]), (low, high), *differences)


def checked_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """Return an interval as two finite numbers in order.

    Args:
        interval: From where to where.

    Returns:
        The two numbers.

    Raises:
        ActivationArgumentError: If they are not.

    Example:
        >>> checked_interval((-12, 12))
        (-12.0, 12.0)
    """
    low, high = (float(end) for end in interval)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ActivationArgumentError(
            f"interval={tuple(interval)!r} is not accepted: give two finite numbers from left to right, such as "
            "(-12, 12)."
        )
    return low, high


def kinks_of(spec: Any, registry: "ActivationRegistry") -> tuple[float, ...]:
    """Return where a registered activation is said to have kinks; none are known of what was never registered.

    Args:
        spec: A canonical spec.
        registry: Where it is looked up.

    Returns:
        The places.

    Raises:
        ActivationArgumentError: If it is not elementwise.
    """
    if spec.opaque:
        return ()
    facts = registry.entry(spec.name).facts_for(spec.arguments)
    if not facts.elementwise:
        raise ActivationArgumentError(f"{spec} is not elementwise: it is no function of one number.")
    return tuple(x for x, _ in facts.kinks)


def _slope(first: tuple[Function, ...], second: tuple[Function, ...], order: int) -> Function | None:
    """Return the derivative of the difference in closed form, if there is one."""
    return (lambda x: first[order + 1](x) - second[order + 1](x)) if order < 2 else None


def _largest(
    pair: tuple[Function, Function], slope: Function | None, grid: Tensor, corners: Sequence[float]
) -> LargestDifference:
    """Return the largest difference of two functions, given the derivative of the difference."""
    a, b = pair[0](grid), pair[1](grid)
    sizes = (a - b).abs()
    if not bool(sizes.isfinite().all()):
        place = grid[~sizes.isfinite()][0].item()
        raise ActivationArgumentError(f"The difference is not finite at {place:g}. Choose an interval without it.")
    doubt = _ROUNDING * (torch.maximum(a.abs(), b.abs()) + sizes.max())
    tops, stretches = [], []
    special = (*corners, 0.0)
    for left, top, right in _hills(sizes):
        begin, end = _level(sizes >= sizes[top] - doubt, top)
        from_, to = grid[begin].item(), grid[end].item()
        if to - from_ > _WIDE * (grid[-1] - grid[0]):
            stretches.append((_snapped(from_, special), _snapped(to, special), sizes[top].item()))
            continue
        place, size = _refined(lambda x: pair[0](x) - pair[1](x), slope, grid[[left, top, right]])
        # What is as high as a corner or as zero, to rounding, and next to it, is there.
        place = next((x for x in special if _neighbours(from_, x) or _neighbours(x, to) or from_ < x < to), place)
        tops.append((place, size, doubt[top].item()))
    largest, allowed = max([*((size, doubt) for _, size, doubt in tops), *((size, 0.0) for *_, size in stretches)])
    return LargestDifference(
        largest,
        tuple(sorted({x for x, size, doubt in tops if size >= largest - allowed - doubt})),
        tuple((x, y) for x, y, size in sorted(stretches) if size >= largest - allowed - doubt.max().item()),
    )


def _hills(sizes: Tensor) -> Iterator[tuple[int, int, int]]:
    """Give the foot, the top and the other foot of every hill that may be the highest, as indices."""
    before = torch.cat([sizes.new_full((1,), -math.inf), sizes[:-1]])
    after = torch.cat([sizes[1:], sizes.new_full((1,), -math.inf)])
    tops = torch.nonzero((sizes >= before) & (sizes >= after) & (sizes >= _NEARLY * sizes.max())).flatten()
    taken = torch.zeros(len(sizes), dtype=torch.bool)
    found = 0
    for top in tops[sizes[tops].argsort(descending=True, stable=True)].tolist():
        if taken[top] or found == _MOST_HILLS:
            continue
        left, right = _level(sizes >= sizes[top] * (1 - _FOOT), top)
        taken[left : right + 1] = True
        found += 1
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


def _snapped(x: float, special: Iterable[float]) -> float:
    """Return the special place that ``x`` is a neighbouring number of, or ``x`` itself."""
    return next((place for place in special if _neighbours(x, place)), x)


def _neighbours(x: float, y: float) -> bool:
    return math.isclose(x, y, rel_tol=4 * _EPSILON, abs_tol=1e-300)
