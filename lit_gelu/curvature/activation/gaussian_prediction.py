"""What the statistics of an activation would be if its input were normal with the measured mean and deviation."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.gaussian.moments import kink_mass
from lit_gelu.activations.sampling import sampling_grid, sign_changes
from lit_gelu.curvature.activation.derivatives import joint_derivatives
from lit_gelu.curvature.activation.kinks import kinks_of
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

_REACH = 9.0  # standard deviations; the density there is 1e-18 of its peak
_PANELS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)  # where activations change, at every deviation
_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(16))
_CLEAR = 1e-12  # f' - c or f'' below this is rounding

_SHARES: dict[str, tuple[tuple[float, ...], Callable[[Tensor], Tensor]]] = {
    "share_decreasing": ((0.0,), lambda first: first < 0),
    "share_falling": ((-EPSILON,), lambda first: first <= -EPSILON),
    "share_saturated": ((-EPSILON, EPSILON), lambda first: first.abs() < EPSILON),
    "share_linear": ((1 - EPSILON, 1 + EPSILON), lambda first: (first - 1).abs() < EPSILON),
}


class GaussianPrediction:
    """Computes E f, E f^2, E f', E f'^2, E|f''|, the mean gate, the shares and the kink mass of ``x ~ N(m, s^2)``.

    Shares and kink mass are closed: differences of the normal distribution function at the places where f' crosses the
    thresholds, found once, and ``sum |jump| p(x)``. The expectations are integrals by Gauss-Legendre with 16 nodes on
    panels that end at every deviation within 9 of them, at the inflections and kinks, and where activations change;
    within 1e-9 of the closed forms, where there are any, of `lit_gelu.activations.gaussian`, and all sites at once.

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
        module = registry.create(str(registry.spec_of(activation))).double().eval()
        joint = joint_derivatives(module, registry)
        self._at = joint
        self._kinks = kinks_of(module, registry)
        places = [place for place, _ in self._kinks or ()]

        def slope(x: Tensor) -> Tensor:
            return joint(x).first

        def bend(x: Tensor) -> Tensor:
            return joint(x).second

        grid = sampling_grid([slope], corners=places)
        first, second = slope(grid), bend(grid)
        turns = sign_changes(bend, grid, second, second.abs() > _CLEAR)
        self._breaks = torch.tensor(sorted({*places, *turns}), dtype=torch.float64)

        def crossings_of(threshold: float) -> list[float]:
            above = first - threshold
            return sign_changes(lambda x: slope(x) - threshold, grid, above, above.abs() > _CLEAR)

        crossings = {c: crossings_of(c) for thresholds, _ in _SHARES.values() for c in thresholds}
        self._intervals = {
            name: _intervals(sorted({*places, *(x for c in thresholds for x in crossings[c])}), slope, holds)
            for name, (thresholds, holds) in _SHARES.items()
        }

    def __call__(self, mean: Tensor, std: Tensor) -> Tensor:
        """Compute the figures.

        Args:
            mean: Of the pre-activations, ``[sites]``, float64.
            std: Their standard deviation.

        Returns:
            ``[sites, len(PREDICTED)]``; NaN where mean or deviation is not finite, or the deviation not positive.
        """
        good = mean.isfinite() & std.isfinite() & (std > 0)
        m, s = torch.where(good, mean, 0.0), torch.where(good, std, 1.0)
        expectations = self._expectations(m, s)
        shares = {name: _probability(intervals, m, s) for name, intervals in self._intervals.items()}
        rest = shares["share_falling"] + shares["share_saturated"] + shares["share_linear"]
        kinks = torch.full_like(m, torch.nan) if self._kinks is None else kink_mass(m, s, self._kinks)
        columns = [*expectations, *shares.values(), (1 - rest).clamp(min=0), kinks]
        return torch.where(good[:, None], torch.stack(columns, dim=1), torch.nan)

    def _expectations(self, m: Tensor, s: Tensor) -> list[Tensor]:
        """Integrate f, f^2, f', f'^2, |f''| and the gate."""
        low, high = (m - _REACH * s)[:, None], (m + _REACH * s)[:, None]
        every = m[:, None] + s[:, None] * torch.arange(-_REACH, _REACH + 1, dtype=m.dtype)
        fixed = torch.cat([self._breaks, *(torch.tensor([-x, x], dtype=m.dtype) for x in _PANELS)])
        ends = torch.cat([every, fixed.expand(len(m), -1).clamp(low, high)], dim=1).sort(dim=1).values
        half = (ends[:, 1:] - ends[:, :-1]) / 2
        x = (ends[:, :-1] + half)[..., None] + half[..., None] * _NODES
        density = torch.exp(-0.5 * ((x - m[:, None, None]) / s[:, None, None]).square())
        weights = (half[..., None] * _WEIGHTS * density / (s[:, None, None] * math.sqrt(2 * math.pi))).flatten(1)
        at = self._at(x.flatten(1))
        values = [at.value, at.value.square(), at.first, at.first.square(), at.second.abs()]
        found = [(value * weights).sum(1) for value in values]
        gate = torch.full_like(m, torch.nan) if at.gate is None else (at.gate * weights).sum(1)
        return [*found, gate]


def _intervals(
    places: list[float], slope: Callable[[Tensor], Tensor], holds: Callable[[Tensor], Tensor]
) -> list[tuple[float, float]]:
    """Return where a condition on f' holds; f' crosses its thresholds at the places alone."""
    if not places:
        ends, inner = [-math.inf, math.inf], [0.0]
    else:
        ends = [-math.inf, *places, math.inf]
        inner = [places[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(places)), places[-1] + 1]
    chosen = holds(slope(torch.tensor(inner, dtype=torch.float64))).tolist()
    return [pair for pair, good in zip(itertools.pairwise(ends), chosen, strict=True) if good]


def _probability(intervals: list[tuple[float, float]], m: Tensor, s: Tensor) -> Tensor:
    """Return the probability of a union of intervals."""
    total = torch.zeros_like(m)
    for low, high in intervals:
        a, b = (low - m) / s, (high - m) / s
        right = (a + b) > 0  # the smaller of the two tails, so that no difference of numbers near 1 is taken
        left_tail = torch.special.ndtr(torch.where(right, -a, b)) - torch.special.ndtr(torch.where(right, -b, a))
        total = total + left_tail
    return total
