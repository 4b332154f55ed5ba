"""What the statistics of an activation would be if its input were normal with the measured mean and deviation."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.gaussian import kink_mass
from lit_gelu.curvature.activation.formulas import Slopes, kinks_of
from lit_gelu.curvature.activation.statistics import EPSILON

PREDICTED: tuple[str, ...] = (
    "mean_output",
    "mean_squared_output",
    "mean_derivative",
    "mean_squared_derivative",
    "mean_abs_second_derivative",
    "mean_gate",
    "share_decreasing",
    "share_falling",
    "share_saturated",
    "share_linear",
    "share_transition",
    "kink_mass",
)
"""The names of the figures, in the order of `GaussianPrediction`."""

_REACH = 14.0  # units, each 0.7 to 1.4 deviations, from within half a unit of the mean: 9.5 deviations, density 1e-20
_EVERY = 2.0  # units between the ends of panels: 16 nodes are exact to 1e-12 on as many deviations
_KEPT = 100  # rules, of means and deviations that may come back

_SHARES: dict[str, tuple[tuple[float, ...], Callable[[Tensor], Tensor]]] = {
    "share_decreasing": ((0.0,), lambda first: first < 0),
    "share_falling": ((-EPSILON,), lambda first: first <= -EPSILON),
    "share_saturated": ((-EPSILON, EPSILON), lambda first: first.abs() < EPSILON),
    "share_linear": ((1 - EPSILON, 1 + EPSILON), lambda first: (first - 1).abs() < EPSILON),
}

NODES, WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(16))
_ABOUT = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)  # widths: where GELU, at 0 and of width 1, changes
_FAR = 2.0**20  # so far out what fades as a power of x is looked at
_WIDTH = 2.2  # between the places at which a tenth and nine tenths of GELU's changes of slope are done
_ALIKE = 4.0  # widths that differ by less are not told apart
_TOLERANCE = 1e-11
_LEVELS = 40
_MOST = 400


class GaussianPrediction:
    """Computes E f, E f^2, E f', E f'^2, E|f''|, the mean gate, the shares and the kink mass of ``x ~ N(m, s^2)``.

    Shares and kink mass are closed: differences of the normal distribution function at the places where f' crosses the
    thresholds, found once, and ``sum |jump| p(x)``. The expectations are integrals by Gauss-Legendre with 16 nodes on
    panels that end at every second unit, at the inflections and kinks, and where the activation changes, wherever that
    is and however slowly (`own_ends`); within 1e-9 of the closed forms, where there are any, of
    `lit_gelu.activations.gaussian`, and all sites at once.

    The unit is the power of 2 next to the deviation, and units are counted from the multiple of it next to the mean. So
    the nodes, and what the activation is there, stay the same while mean and deviation move a little, and are kept.

    Args:
        activation: An elementwise activation without parameters.
        registry: Where it is looked up.

    Example:
        >>> from lit_gelu.activations import registry
        >>> mean, std = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> row = GaussianPrediction(nn.GELU(), registry)(mean, std)[0]
        >>> {name: round(value, 6) for name, value in zip(PREDICTED, row.tolist()) if "squared" in name}
        {'mean_squared_output': 0.425221, 'mean_squared_derivative': 0.455851}
    """

    def __init__(self, activation: nn.Module, registry: ActivationRegistry) -> None:
        slopes = Slopes(activation, registry)
        self._at = slopes.joint
        self._kinks = kinks_of(activation, registry)
        self._breaks = torch.tensor(own_ends(slopes), dtype=torch.float64)
        intervals = [slopes.intervals(thresholds, holds) for thresholds, holds in _SHARES.values()]
        ends = [pair for pairs in intervals for pair in pairs]
        self._low, self._high = torch.tensor(ends, dtype=torch.float64).reshape(-1, 2).T
        share_of = torch.repeat_interleave(
            torch.arange(len(intervals)), torch.tensor([len(pairs) for pairs in intervals])
        )
        self._share_of = nn.functional.one_hot(share_of, len(intervals)).double()
        self._rules: dict[tuple[float, float], tuple[Tensor, Tensor]] = {}
        self._in_use: tuple[list[tuple[float, float]], Tensor, Tensor] = (
            [],
            self._low,
            self._low,
        )  # those of the last call

    def __call__(self, mean: Tensor, std: Tensor) -> Tensor:
        """Return ``[sites, len(PREDICTED)]`` for ``[sites]`` in float64; NaN without a finite, positive deviation."""
        good = mean.isfinite() & std.isfinite() & (std > 0)
        m, s = torch.where(good, mean, 0.0), torch.where(good, std, 1.0)
        # The probabilities of the intervals on which f' is as the shares say, [sites, intervals].
        a, b = ((end - m[:, None]) / s[:, None] for end in (self._low, self._high))
        right = (a + b) > 0  # the smaller of the two tails, so that no difference of numbers near 1 is taken
        tails: Tensor = torch.special.ndtr(torch.stack([torch.where(right, -a, b), torch.where(right, -b, a)]))
        shares = (tails[0] - tails[1]) @ self._share_of
        others = [number for number, name in enumerate(_SHARES) if name != "share_decreasing"]
        rest = 1 - shares[:, others].sum(1)
        kinks = torch.full_like(m, torch.nan) if self._kinks is None else kink_mass(m, s, self._kinks)
        columns = [self._expectations(m, s), shares, rest.clamp(min=0)[:, None], kinks[:, None]]
        return torch.where(good[:, None], torch.cat(columns, dim=1), torch.nan)

    def _expectations(self, m: Tensor, s: Tensor) -> Tensor:
        """Integrate f, f^2, f', f'^2, |f''| and the gate: ``[sites, 6]``."""
        units = torch.exp2(s.log2().round())
        rows_of: dict[tuple[float, float], list[int]] = {}
        for row, key in enumerate(zip((units * (m / units).round()).tolist(), units.tolist(), strict=True)):
            rows_of.setdefault(key, []).append(row)
        most = max(map(len, rows_of.values()), default=0)
        rows = torch.tensor([[*same, *same[:1] * (most - len(same))] for same in rows_of.values()], dtype=torch.int64)
        x, values = self._rules_for(list(rows_of))
        mean, std = m[rows][..., None], s[rows][..., None]  # [rules, sites of a rule, 1]
        z = (x[:, None] - mean).div_(std)
        density = z.square_().mul_(-0.5).exp_().div_(std * math.sqrt(2 * math.pi))
        expectations = torch.empty(len(m), len(values[0]), dtype=m.dtype)
        expectations[rows] = density @ values.mT  # those that fill up a row are the same again
        return expectations

    def _rules_for(self, keys: list[tuple[float, float]]) -> tuple[Tensor, Tensor]:
        """Return nodes ``[rules, nodes]``, and the weighted integrands there, ``[rules, 6, nodes]``."""
        if keys != self._in_use[0]:
            if len(self._rules) > _KEPT:
                self._rules.clear()
            new = [key for key in keys if key not in self._rules]
            if new:
                centres, widths = torch.tensor(new, dtype=torch.float64).T
                self._rules |= zip(new, zip(*self._new_rules(centres, widths), strict=True), strict=True)
            x, values = zip(*(self._rules[key] for key in keys), strict=True)
            self._in_use = keys, torch.stack(x), torch.stack(values)
        return self._in_use[1:]

    def _new_rules(self, centre: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate the integrands at the nodes about some centres."""
        every = centre[:, None] + unit[:, None] * torch.arange(-_REACH, _REACH + 1, _EVERY, dtype=centre.dtype)
        inside = self._breaks.expand(len(centre), -1).clamp(every[:, :1], every[:, -1:])
        ends = torch.cat([every, inside], dim=1).sort(dim=1).values
        half = (ends[:, 1:] - ends[:, :-1]) / 2
        x = ((ends[:, :-1] + half)[..., None] + half[..., None] * NODES).flatten(1)
        weights = (half[..., None] * WEIGHTS).flatten(1)
        at = self._at(x)
        gate = torch.full_like(x, torch.nan) if at.gate is None else at.gate
        values = [at.value, at.value.square(), at.first, at.first.square(), at.second.abs(), gate]
        return x, torch.stack(values, dim=1) * weights[:, None]


def own_ends(slopes: Slopes) -> list[float]:
    """Return where panels must end so that rules with 16 nodes integrate an activation times a smooth density."""
    # Panels begin in the proportions that suit GELU, about the middle of where f' changes and as wide as that is, and
    # are halved until the integrals of f, f^2, f', f'^2 and |f''| over a panel and over its halves agree to 1e-11.
    centre, width = _where_it_changes(slopes)
    about = [centre + sign * width * x for x in (*_ABOUT, _FAR) for sign in (-1, 1)]
    ends = torch.tensor(sorted({*slopes.kinks, *slopes.turns, *about}), dtype=torch.float64)
    for _ in range(_LEVELS):
        left, right = ends[:-1], ends[1:]
        middle = (left + right) / 2
        coarse, halves = _integrals(slopes, left, right), _integrals(slopes, left, middle)
        halves = [one + other for one, other in zip(halves, _integrals(slopes, middle, right), strict=True)]
        rough = (
            ((coarse[0] - halves[0]).abs() > _TOLERANCE * (1 + halves[1])).any(0) & (middle > left) & (middle < right)
        )
        if not bool(rough.any()) or len(ends) + int(rough.sum()) > _MOST:
            break
        ends = torch.cat([ends, middle[rough]]).sort().values
    panel_ends: list[float] = ends[(ends - centre).abs() < _FAR * width].tolist()
    return panel_ends


def _where_it_changes(slopes: Slopes) -> tuple[float, float]:
    """Return the middle of where f' changes, kinks left out, and how wide that is, in units of GELU's."""
    change = slopes.first.diff().abs()
    for kink in slopes.kinks:
        change[(slopes.grid[:-1] <= kink) & (slopes.grid[1:] >= kink)] = 0
    total = change.cumsum(0)
    if not len(total) or not 0 < float(total[-1]) < torch.inf:
        return 0.0, 1.0
    low, centre, high = slopes.grid[torch.searchsorted(total, total[-1] * torch.tensor([0.1, 0.5, 0.9]))].tolist()
    width = (high - low) / _WIDTH
    if 1 / _ALIKE < width < _ALIKE or width <= 0:
        width = 1.0
    return (0.0 if abs(centre) < 2 * width else centre), width


def _integrals(slopes: Slopes, left: Tensor, right: Tensor) -> list[Tensor]:
    """Return the integrals ``[functions, panels]`` over some panels, and those of their absolute values."""
    half = (right - left) / 2
    at = slopes.joint(((left + half)[:, None] + half[:, None] * NODES).flatten())
    values = torch.stack([at.value, at.value.square(), at.first, at.first.square(), at.second.abs()])
    parts = values.view(len(values), len(left), -1) * (half[:, None] * WEIGHTS)
    return [parts.sum(-1), parts.abs().sum(-1)]
