"""Where a function of one variable is looked at: a grid fine enough at every scale, and roots between its points."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from lit_gelu.errors import ArgumentError

Function = Callable[[Tensor], Tensor]

REACH = 40.0  # up to here the grid is even: exp(-x^2/2) and most of what is built from it have settled beyond
FARTHEST = 2.0**60  # where limits are read: beyond it, squares of squares of x still fit into float64
_STEP = 0.002
_FEWEST = 20_000  # points of the even part
_AN_OCTAVE = 64  # points of the geometric part for every doubling of |x|
_ROUGH = 0.05  # f' may change by this share between two points; where it changes more, points are added
_SPLIT = 16
_LEVELS = 14  # 16**14 > 2**53: a jump is followed down to neighbouring numbers
_MOST_ROUGH = 500  # where more intervals than this need points, the function oscillates or is rough everywhere
_MOST_ROUGH_WITHIN = 20_000  # the same where the ends were chosen: there it is worth more work
_SECTIONS = 32  # a call costs more than the 31 points that it computes
_ROUNDS = 50  # 32**11 > 2**53; more are needed only for places that are tiny beside the interval


def both_sides(places: Iterable[float]) -> list[float]:
    """Return every place with its two neighbours in float64, where one-sided limits are read."""
    return [side for x in places for side in (math.nextafter(x, -math.inf), x, math.nextafter(x, math.inf))]


def sampling_grid(
    slopes: Iterable[Function], low: float = -FARTHEST, high: float = FARTHEST, corners: Iterable[float] = ()
) -> Tensor:
    """Return points at which functions with these derivatives can be judged."""
    # The grid is even within [-40, 40], with a step of 0.002 or less, and geometric towards zero and outwards, with 64
    # points for each doubling. Where an ``f'`` changes by more than a twentieth between neighbours (narrow transitions,
    # unknown kinks), points are added until it does not or they are neighbouring numbers. Between given ends there are
    # 20,001 even points at least; without ends, what oscillates beyond 40 is not resolved, and the grid ends there.
    slopes = tuple(slopes)
    grid = _regular_grid(low, high, corners)
    values = torch.stack([slope(grid) for slope in slopes])
    grid, values = _finite(grid, values)
    if not len(grid):
        raise ArgumentError(f"The derivative is finite nowhere between {low:g} and {high:g}.")
    bounded = (low, high) != (-FARTHEST, FARTHEST)
    most = _MOST_ROUGH_WITHIN if bounded else _MOST_ROUGH
    if not bounded and int((_rough(grid, values) & (grid[1:].abs() > REACH)).sum()) > most:
        inner = grid.abs() <= REACH
        grid, values = grid[inner], values[:, inner]
    for _ in range(_LEVELS):
        rough = torch.nonzero(_rough(grid, values)).flatten()
        if not 0 < len(rough) <= most:
            break
        share = torch.arange(1, _SPLIT, dtype=torch.float64) / _SPLIT
        added = _unique(grid[rough, None] + (grid[rough + 1] - grid[rough])[:, None] * share)
        added, new = _finite(added, torch.stack([slope(added) for slope in slopes]))
        grid, order = torch.cat([grid, added]).sort()
        values = torch.cat([values, new], dim=1)[:, order]
    return _unique(grid)


def _regular_grid(low: float, high: float, corners: Iterable[float]) -> Tensor:
    """Return the even and the geometric part, the ends, zero, and both sides of the corners."""
    inner = max(low, -REACH), min(high, REACH)
    steps = max(_FEWEST, math.ceil((inner[1] - inner[0]) / _STEP))
    even = torch.linspace(*inner, steps + 1, dtype=torch.float64) if inner[0] < inner[1] else torch.empty(0)
    if (low, high) != (-FARTHEST, FARTHEST):
        even = torch.cat([even, torch.linspace(low, high, _FEWEST + 1, dtype=torch.float64)])
    magnitudes = torch.exp2(torch.arange(-60 * _AN_OCTAVE, 60 * _AN_OCTAVE + 1, dtype=torch.float64) / _AN_OCTAVE)
    magnitudes = magnitudes[(magnitudes < 4 * _STEP) | (magnitudes > REACH)]
    special = torch.tensor([low, high, 0.0, *both_sides(corners)], dtype=torch.float64)
    grid: Tensor = torch.cat([even, -magnitudes, magnitudes, special])
    return _unique(grid[(grid >= low) & (grid <= high)])


def _unique(points: Tensor) -> Tensor:
    values: Tensor = torch.unique(points)  # torch gives no return type
    return values


def _finite(grid: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    kept = values.isfinite().all(dim=0)
    return grid[kept], values[:, kept]


def _rough(grid: Tensor, values: Tensor) -> Tensor:
    """Return between which neighbours a function changes too much, and numbers are left to look at."""
    sizes = values.abs()
    floor = sizes.amax(dim=1, keepdim=True).clamp(max=1.0)
    scale = torch.maximum(torch.maximum(sizes[:, 1:], sizes[:, :-1]), floor)
    gaps = grid.diff()
    room = gaps > 4 * torch.finfo(torch.float64).eps * torch.maximum(grid[1:].abs(), grid[:-1].abs())
    return (values.diff(dim=1).abs() > _ROUGH * scale).any(dim=0) & room & (gaps > 1e-300)


def sign_changes(g: Function, grid: Tensor, values: Tensor, clear: Tensor) -> list[float]:
    """Return where ``g`` passes from clearly positive to clearly negative or back, to float64 precision."""
    # ``clear`` says at which points of the grid the sign counts: a function that fades to zero does not turn.
    points = grid[clear]
    signs = values[clear].sign()
    changed = torch.nonzero(signs[1:] != signs[:-1]).flatten()
    if not len(changed):
        return []
    left, right = points[changed], points[changed + 1]
    nothing = torch.finfo(torch.float64).eps * (right - left)
    places = bisect(g, left, right, 1e-6 * nothing)
    roots: list[float] = torch.where(places.abs() < nothing, 0.0, places).tolist()
    return roots


def bisect(g: Function, left: Tensor, right: Tensor, resolution: Tensor | float = 0.0) -> Tensor:
    """Return where ``g`` changes its sign between ``left`` and ``right``, ``(N,)``: the number with less ``|g|``."""
    sign = g(left).sign()
    shares = torch.arange(1, _SECTIONS, dtype=torch.float64)[:, None] / _SECTIONS
    for _ in range(_ROUNDS):
        points = torch.cat([left[None], left + (right - left) * shares, right[None]])
        before = (g(points[1:-1].flatten()).view(_SECTIONS - 1, -1).sign() == sign).cumprod(0).sum(0, keepdim=True)
        lower, upper = points.gather(0, before)[0], points.gather(0, before + 1)[0]
        done = ((lower == left) & (upper == right)) | (upper - lower <= resolution)
        left, right = lower, upper
        if bool(done.all()):
            break
    return torch.where(g(left).abs() <= g(right).abs(), left, right)
