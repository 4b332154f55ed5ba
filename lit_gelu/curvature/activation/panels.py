"""Panels on which an activation and its derivatives are polynomials to float64, wherever it changes."""

import numpy as np
import torch
from torch import Tensor

from lit_gelu.curvature.activation.slopes import Slopes

NODES, WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(16))
_ABOUT = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)  # widths: where GELU, at 0 and of width 1, changes
_FAR = 2.0**20  # so far out what fades as a power of x is looked at
_WIDTH = 2.2  # between the places at which a tenth and nine tenths of GELU's changes of slope are done
_ALIKE = 4.0  # widths that differ by less are not told apart
_TOLERANCE = 1e-11
_LEVELS = 40
_MOST = 400


def own_ends(slopes: Slopes) -> list[float]:
    """Return where panels must end so that rules with 16 nodes integrate an activation times a smooth density.

    Panels begin in the proportions that suit GELU, about the middle of where f' changes and as wide as that is, and are
    halved until the integrals of f, f^2, f', f'^2 and |f''| over a panel and over its halves agree to 1e-11.

    Args:
        slopes: The activation.

    Returns:
        The ends, sorted; kinks and inflections are among them.

    Example:
        >>> from torch import nn
        >>> from lit_gelu.activations import registry
        >>> [end for end in own_ends(Slopes(nn.ReLU(), registry)) if abs(end) < 1]
        [-0.5, -0.25, 0.0, 0.25, 0.5]
    """
    centre, width = _where_it_changes(slopes)
    about = [centre + sign * width * x for x in (*_ABOUT, _FAR) for sign in (-1, 1)]
    ends = torch.tensor(sorted({*slopes.kinks, *slopes.turns, *about}), dtype=torch.float64)
    for _ in range(_LEVELS):
        left, right = ends[:-1], ends[1:]
        middle = (left + right) / 2
        whole, halves = _integrals(slopes, left, right), _integrals(slopes, left, middle)
        halves = [one + other for one, other in zip(halves, _integrals(slopes, middle, right), strict=True)]
        rough = (
            ((whole[0] - halves[0]).abs() > _TOLERANCE * (1 + halves[1])).any(0) & (middle > left) & (middle < right)
        )
        if not bool(rough.any()) or len(ends) + int(rough.sum()) > _MOST:
            break
        ends = torch.cat([ends, middle[rough]]).sort().values
    found: list[float] = ends[(ends - centre).abs() < _FAR * width].tolist()
    return found


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
