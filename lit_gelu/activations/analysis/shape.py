"""Facts computed from an activation's values: extrema, inflections, range, Lipschitz constant, asymptotes; gains."""

import math
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.gaussian import gains
from lit_gelu.activations.naming.entry import ActivationFacts
from lit_gelu.activations.naming.info import ActivationShape
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.scalar import ScalarActivation
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.numerics.channels import INFER
from lit_gelu.activations.numerics.sampling import FARTHEST, Function, both_sides, sampling_grid, sign_changes
from lit_gelu.errors import ArgumentError

Asymptote = tuple[float, float]

_FIRST = 17  # from 2**17 on: there cancellation costs 3e-11, and what fades as 1/x^2 is as small
_SETTLED = 1e-5  # share by which the last values may differ; 1/log(x) still moves by 3e-4
_NOTHING = 1e-9  # |f'| and |x f''| below this are an asymptote approached, not a change of direction


def computed_facts(spec: ActivationSpec, facts: ActivationFacts, registry: Names) -> dict[str, Any]:
    """Return the fields of `ActivationShape` and the gains; nothing of what is no function of one number."""
    if not facts.elementwise:
        return {}
    if spec.arguments.get("channels") == INFER:
        spec = ActivationSpec.of(spec.name, **{**spec.arguments, "channels": 1})
    try:
        shape = shape_of(ScalarActivation.of(spec, registry))
    except ArgumentError:  # it differs between channels
        return {}
    try:
        return {**vars(shape), "gains": gains(spec, registry=registry)}
    except ArgumentError:  # an expectation that is 0 or does not exist
        return vars(shape)


def shape_of(scalar: ScalarActivation) -> ActivationShape:
    """Compute the facts of an elementwise activation from ``f``, ``f'`` and ``f''`` in float64."""
    # They are evaluated at every scale from 2^-60 to 2^60 (`numerics.sampling.sampling_grid`), and sign changes are
    # refined by bisection to float64 precision. This misses what lies between two points of that grid and leaves ``f'``
    # the same on both, such as a bump of width 1 at 10,000. A function that oscillates for ever is judged within
    # [-40, 40].
    f, slope, bend = scalar.functions
    # Roots and logarithms are not defined on the whole line. Larger numbers are not asked: there what is written with
    # exp may overflow, and be NaN.
    sizes = torch.logspace(0, 4, 5, base=2.0, dtype=torch.float64)
    nearest, x = torch.tensor([-1.0, 1.0], dtype=torch.float64), torch.cat([-sizes, sizes])
    if f(x).isnan().any() or not (f(nearest).isfinite().all() and slope(nearest).isfinite().all()):
        return ActivationShape()
    corners = [x for x, _ in scalar.kinks]
    grid = sampling_grid([slope], corners=corners)
    slopes, bends = slope(grid), bend(grid)
    nothing = _NOTHING * slopes.abs().max().clamp(max=1.0)
    curving = bends * grid.abs().clamp(min=1.0)
    turns = sign_changes(slope, grid, slopes, slopes.abs() > nothing)
    inflections = sign_changes(bend, grid, bends, curving.abs() > nothing)
    places = torch.tensor([*turns, *both_sides(corners), *inflections, 0.0], dtype=torch.float64)
    left, right = asymptote_of(f, slope, -1), asymptote_of(f, slope, 1)
    at_places = f(places)
    low, high, largest = at_places.min().item(), at_places.max().item(), at_places.abs().max().item()
    for side, line in ((-1, left), (1, right)):
        end = _end(tail(f, slope, side)[1], side, line, largest)
        low, high = min(low, end), max(high, end)
    lowest = places[at_places.argmin()].item()
    slopes = torch.cat([slopes, slope(places)])
    steepest_near = slopes[: len(grid)][grid.abs() <= 1.0].abs().max().item()
    unbounded = any(grows(tail(f, slope, side)[2], steepest_near) for side in (-1, 1))
    return ActivationShape(
        range=(low + 0.0, high + 0.0),
        monotone=bool((slopes >= -nothing).all()),
        convex=bool((curving >= -nothing).all()) and all(jump >= 0 for _, jump in scalar.kinks),
        lipschitz=math.inf if unbounded else slopes.abs().max().item(),
        derivative_at_zero=slope(torch.zeros(1, dtype=torch.float64)).item(),
        minimum=(lowest, low + 0.0) if lowest in turns else None,
        inflections=tuple(inflections),
        left_asymptote=left,
        right_asymptote=right,
    )


def _end(values: Tensor, side: int, line: Asymptote | None, largest: float) -> float:
    """Return the limit of ``f`` on one side, or the last value of what has none but is bounded."""
    if line is not None:
        return line[1] if line[0] == 0 else math.copysign(math.inf, side * line[0])
    last = values[-1].item()
    return math.copysign(math.inf, last) if grows(values, largest) else last


def asymptote_of(f: Function, slope: Function, side: int) -> Asymptote | None:
    """Compute ``(slope, offset)`` of the line that a function approaches on one side, -1 or 1, if there is one."""
    # With ``x = side * 2**k`` for ``k`` up to 60, the slope is the limit of ``f'(x)`` and the offset that of
    # ``f(x) - slope * x``. The offset is good to about 1e-10 where it is approached as ``1 / x**2``, to 1e-8 where
    # it is approached as ``1 / x``, and to rounding where it is approached faster.
    x, values, slopes = tail(f, slope, side)
    if len(x) < 4 or not _settles(slopes):
        return None
    limit = slopes[-1].item()
    if abs(limit) <= 4 * torch.finfo(torch.float64).eps * slopes.abs().max().item():
        limit = 0.0  # what cancellation left over
    rest = values - limit * x
    moved = rest.diff().abs()
    rounding = 2 * torch.finfo(torch.float64).eps * (limit * x[1:]).abs()
    first = min(_FIRST, len(moved) - 3)
    best = first + int((moved + rounding)[first:].argmin())
    if moved[best] > _SETTLED * rest[: best + 2].abs().max() + rounding[best]:
        return None
    return limit + 0.0, rest[best + 1].item() + 0.0


def tail(f: Function, slope: Function, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``x = side * 2**k``, ``f(x)`` and ``f'(x)`` for ``k`` from 0 to 60, up to where one is not finite."""
    x = side * torch.logspace(0, torch.tensor(FARTHEST).log2().item(), 61, base=2.0, dtype=torch.float64)
    values, slopes = f(x), slope(x)
    length = int((values.isfinite() & slopes.isfinite()).cumprod(0).sum())
    return x[:length], values[:length], slopes[:length]


def grows(values: Tensor, largest: float) -> bool:
    """Return whether values at ``2**k`` grow without bound: logarithms and powers do, what oscillates does not."""
    sizes = values[-8:].abs()
    return len(sizes) > 1 and bool((sizes.diff() > 0).all()) and not _settles(values) and sizes[-1].item() > largest


def _settles(values: Tensor) -> bool:
    """Return whether the last three values are the same for practical purposes."""
    return bool((values[-3:].diff().abs() <= _SETTLED * values.abs().max().clamp(max=1.0)).all())
