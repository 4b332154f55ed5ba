"""Facts computed from an activation's values: extrema, inflections, range, Lipschitz constant, asymptotes."""

import math

import torch
from torch import Tensor, nn

from lit_gelu.activations.analysis.asymptotes import Asymptote, asymptote_of, grows, tail
from lit_gelu.activations.analysis.sampling import Function, both_sides, sampling_grid, sign_changes
from lit_gelu.activations.analysis.scalar import scalar_functions
from lit_gelu.activations.naming.facts import ActivationShape
from lit_gelu.activations.naming.names import Names

_NOTHING = 1e-9  # |f'| and |x f''| below this are an asymptote approached, not a change of direction


def shape_of(
    module: nn.Module, kinks: tuple[tuple[float, float], ...] = (), *, registry: Names | None = None
) -> ActivationShape:
    """Compute the facts of an elementwise activation from ``f``, ``f'`` and ``f''`` in float64.

    The three are evaluated at every scale from 2^-60 to 2^60 (`analysis.sampling.sampling_grid`), and sign changes
    are refined by bisection to float64 precision. Not seen is what lies between two points of that grid and
    leaves ``f'`` the same on both, such as a bump of width 1 at 10,000. What oscillates for ever is judged within
    [-40, 40].

    Args:
        module: The activation; it is not changed.
        kinks: ``(x, f'(x+) - f'(x-))`` wherever ``f'`` jumps.
        registry: Where the closed forms are looked up.

    Returns:
        The facts.

    Raises:
        ActivationArgumentError: If the module is not elementwise, or its channels differ.

    Example:
        >>> shape = shape_of(nn.SiLU())
        >>> round(shape.minimum[0], 9), round(shape.minimum[1], 9)
        (-1.278464543, -0.278464543)
        >>> [round(x, 6) for x in shape.inflections]
        [-2.399357, 2.399357]
        >>> shape.left_asymptote, shape.right_asymptote
        ((0.0, 0.0), (1.0, 0.0))
    """
    f, slope, bend = scalar_functions(module, registry=registry)
    corners = [x for x, _ in kinks]
    grid = sampling_grid([slope], corners=corners)
    slopes, bends = slope(grid), bend(grid)
    nothing = _NOTHING * slopes.abs().max().clamp(max=1.0)
    curving = bends * grid.abs().clamp(min=1.0)
    turns = sign_changes(slope, grid, slopes, slopes.abs() > nothing)
    inflections = sign_changes(bend, grid, bends, curving.abs() > nothing)
    places = torch.tensor([*turns, *both_sides(corners), *inflections, 0.0], dtype=torch.float64)
    left, right = asymptote_of(f, slope, -1), asymptote_of(f, slope, 1)
    low, high = _range(f, slope, places, (left, right))
    lowest = places[f(places).argmin()].item()
    slopes = torch.cat([slopes, slope(places)])
    return ActivationShape(
        range=(low, high),
        monotone=bool((slopes >= -nothing).all()),
        convex=bool((curving >= -nothing).all()) and all(jump >= 0 for _, jump in kinks),
        lipschitz=_lipschitz(f, slope, grid, slopes),
        derivative_at_zero=slope(torch.zeros(1, dtype=torch.float64)).item(),
        minimum=(lowest, low) if lowest in turns else None,
        inflections=tuple(inflections),
        left_asymptote=left,
        right_asymptote=right,
    )


def _range(
    f: Function, slope: Function, places: Tensor, asymptotes: tuple[Asymptote | None, Asymptote | None]
) -> tuple[float, float]:
    """Return infimum and supremum, from the extrema, the kinks and the two ends."""
    values = f(places)
    largest = values.abs().max().item()
    low, high = values.min().item(), values.max().item()
    for side, line in zip((-1, 1), asymptotes, strict=True):
        end = _end(tail(f, slope, side)[1], side, line, largest)
        low, high = min(low, end), max(high, end)
    return low + 0.0, high + 0.0


def _end(values: Tensor, side: int, line: Asymptote | None, largest: float) -> float:
    """Return the limit of ``f`` on one side, or the last value of what has none but is bounded."""
    if line is not None:
        return line[1] if line[0] == 0 else math.copysign(math.inf, side * line[0])
    last = values[-1].item()
    return math.copysign(math.inf, last) if grows(values, largest) else last


def _lipschitz(f: Function, slope: Function, grid: Tensor, slopes: Tensor) -> float:
    """Return ``sup |f'|``; ``slopes`` holds ``f'`` on the grid and at the places where it may be largest."""
    near = slopes[: len(grid)][grid.abs() <= 1.0].abs().max().item()
    if any(grows(tail(f, slope, side)[2], near) for side in (-1, 1)):
        return math.inf
    return slopes.abs().max().item()
