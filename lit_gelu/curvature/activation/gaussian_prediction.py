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

_REACH = 10.0  # deviations: there the density is 1e-22

_SHARES: dict[str, tuple[tuple[float, ...], Callable[[Tensor], Tensor]]] = {
    "share_decreasing": ((0.0,), lambda first: first < 0),
    "share_falling": ((-EPSILON,), lambda first: first <= -EPSILON),
    "share_saturated": ((-EPSILON, EPSILON), lambda first: first.abs() < EPSILON),
    "share_linear": ((1 - EPSILON, 1 + EPSILON), lambda first: (first - 1).abs() < EPSILON),
}

_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(16))
# Where panels end, in widths from the middle of where an activation changes: what fades as a power of x is far out.
_ABOUT = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, *(2.0**k for k in range(4, 21)))
_WIDTH = 2.2  # between the places at which a tenth and nine tenths of GELU's changes of slope are done


class GaussianPrediction:
    """Computes E f, E f^2, E f', E f'^2, E|f''|, the mean gate, the shares and the kink mass of ``x ~ N(m, s^2)``."""

    # Shares and kink mass are closed. The expectations are integrals by Gauss-Legendre with 16 nodes on panels that end
    # at every deviation, at inflections and kinks, at 0, where f'' may jump as that of ELU does, and more densely where
    # the activation changes: within 1e-9.

    def __init__(self, activation: nn.Module, registry: ActivationRegistry) -> None:
        slopes = Slopes(activation, registry)
        self._at = slopes.joint
        self._kinks = kinks_of(activation, registry)
        # Where f' changes, kinks left out: the middle, and how wide that is in units of GELU's.
        change = slopes.first.diff().abs()
        for kink in slopes.kinks:
            change[(slopes.grid[:-1] <= kink) & (slopes.grid[1:] >= kink)] = 0
        total, centre, width = change.cumsum(0), 0.0, 1.0
        if len(total) and 0 < float(total[-1]) < torch.inf:
            shares = total[-1] * torch.tensor([0.1, 0.5, 0.9])
            low, centre, high = slopes.grid[torch.searchsorted(total, shares)].tolist()
            width = max((high - low) / _WIDTH, 1e-3)
        about = [centre + sign * width * x for x in _ABOUT for sign in (-1, 1)]
        self._breaks = torch.tensor(sorted({0.0, *slopes.kinks, *slopes.turns, *about}), dtype=torch.float64)
        intervals = [slopes.intervals(thresholds, holds) for thresholds, holds in _SHARES.values()]
        ends = [pair for pairs in intervals for pair in pairs]
        self._low, self._high = torch.tensor(ends, dtype=torch.float64).reshape(-1, 2).T
        share_of = torch.repeat_interleave(
            torch.arange(len(intervals)), torch.tensor([len(pairs) for pairs in intervals])
        )
        self._share_of = nn.functional.one_hot(share_of, len(intervals)).double()

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
        steps = torch.linspace(-_REACH, _REACH, round(2 * _REACH) + 1, dtype=m.dtype)
        every = m[:, None] + s[:, None] * steps
        inside = self._breaks.expand(len(m), -1).clamp(every[:, :1], every[:, -1:])
        ends = torch.cat([every, inside], dim=1).sort(dim=1).values
        half = (ends[:, 1:] - ends[:, :-1]) / 2
        x = ((ends[:, :-1] + half)[..., None] + half[..., None] * _NODES).flatten(1)
        z = (x - m[:, None]) / s[:, None]
        density = torch.exp(-0.5 * z * z) / (s[:, None] * math.sqrt(2 * math.pi))
        weights = (half[..., None] * _WEIGHTS).flatten(1) * density
        at = self._at(x)
        gate = torch.full_like(x, torch.nan) if at.gate is None else at.gate
        values = [at.value, at.value.square(), at.first, at.first.square(), at.second.abs(), gate]
        return (torch.stack(values, dim=1) * weights[:, None]).sum(2)
