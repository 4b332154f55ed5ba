"""Facts computed from an activation's values: extrema, inflections, range, Lipschitz constant."""

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lit_gelu.activations.functional.dispatch import derivative
from lit_gelu.activations.info import ActivationShape

if TYPE_CHECKING:
    from lit_gelu.activations.registry import ActivationRegistry

Function = Callable[[Tensor], Tensor]

_REACH = 40.0  # beyond this, exp(-x^2/2) and most of what is built from it have settled
_POINTS = 160_001
_FAR = 1e8  # where a function that has a finite limit has reached it in float64
_NOTHING = 1e-9  # |f'| and |f''| below this are an asymptote approached, not a change of direction
_BISECTIONS = 60


def shape_of(
    module: nn.Module, kinks: tuple[tuple[float, float], ...] = (), *, registry: "ActivationRegistry | None" = None
) -> ActivationShape:
    """Compute the facts of an elementwise activation from ``f``, ``f'`` and ``f''`` in float64.

    The three are evaluated on a grid over [-40, 40] with step 0.0005, and sign changes are refined by bisection to
    float64 precision. What is narrower than the step, or lies beyond 40, is not seen.

    Args:
        module: The activation; it is not changed.
        kinks: ``(x, f'(x+) - f'(x-))`` wherever ``f'`` jumps.
        registry: Where the closed forms are looked up.

    Returns:
        The facts.

    Example:
        >>> shape = shape_of(nn.SiLU())
        >>> round(shape.minimum[0], 9), round(shape.minimum[1], 9)
        (-1.278464543, -0.278464543)
        >>> [round(x, 6) for x in shape.inflections]
        [-2.399357, 2.399357]
    """

    def of_order(order: int) -> Function:
        return lambda x: derivative(module, x, order, registry=registry).detach()

    module = copy.deepcopy(module).to(torch.float64)
    f, slope, bend = of_order(0), of_order(1), of_order(2)
    grid = torch.linspace(-_REACH, _REACH, _POINTS, dtype=torch.float64)
    turns = _sign_changes(slope, grid)
    inflections = _sign_changes(bend, grid)
    corners = [(x, side) for x, _ in kinks for side in (math.nextafter(x, -math.inf), math.nextafter(x, math.inf))]
    places = torch.tensor([-_FAR, *turns, *(side for _, side in corners), *inflections, 0.0, _FAR], dtype=torch.float64)
    low, high = _range(f, places)
    lowest = places[f(places).argmin()].item()
    slopes, far_slopes = slope(torch.cat([places, grid])), slope(places[[0, -1]])
    return ActivationShape(
        range=(low, high),
        monotone=bool((slopes >= -_NOTHING).all()),
        convex=bool((bend(grid) >= -_NOTHING).all()) and all(jump >= 0 for _, jump in kinks),
        lipschitz=math.inf if far_slopes.abs().max() > math.sqrt(_FAR) else slopes.abs().max().item(),
        derivative_at_zero=slope(torch.zeros(1, dtype=torch.float64)).item(),
        minimum=(lowest, low) if lowest in turns else None,
        inflections=tuple(inflections),
    )


def _range(f: Function, places: Tensor) -> tuple[float, float]:
    """Return infimum and supremum; what still grows at 1e8 is unbounded."""
    values = f(places)
    low, high = values.min().item(), values.max().item()
    bound = math.sqrt(_FAR)
    return (-math.inf if low < -bound else low + 0.0, math.inf if high > bound else high + 0.0)


def _sign_changes(g: Function, grid: Tensor) -> list[float]:
    """Return where ``g`` passes from clearly positive to clearly negative or back, by bisection.

    Points where ``|g|`` is negligible are passed over, so that a function that fades to zero does not count as turning.
    """
    values = g(grid)
    clear = torch.nonzero(values.abs() > _NOTHING).flatten()
    changed = torch.nonzero(values[clear][1:].sign() != values[clear][:-1].sign()).flatten()
    left, right = grid[clear[changed]], grid[clear[changed + 1]]
    sign = g(left).sign() if len(left) else left
    for _ in range(_BISECTIONS if len(left) else 0):
        middle = (left + right) / 2
        before = g(middle).sign() == sign
        left, right = torch.where(before, middle, left), torch.where(before, right, middle)
    crossings = (left + right) / 2
    return torch.where(crossings.abs() < torch.finfo(torch.float64).eps, 0.0, crossings).tolist()
