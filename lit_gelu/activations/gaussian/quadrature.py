"""Expectations over a normal distribution by adaptive quadrature, for any function of one variable."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.activations.errors import NoGaussianMomentsError
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.scalar import derivatives_of
from lit_gelu.activations.numerics.normal import GaussianMoments, density, kink_mass
from lit_gelu.activations.numerics.sampling import sign_changes

_ROUNDED = 1e-28  # a variance this much smaller than the square is that of float64's last digit: f is constant

Integrands = Callable[[Tensor], Tensor]

REACH = 37.0  # standard deviations; a little further the density is no normal number of float64
_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(24))
_TOLERANCE = 1e-13
_NOISE = 1e-6
_NOTHING = 1e-280  # integrals below this have lost digits to subnormal numbers
_LEVELS = 60
_ACTIVE_PANELS = 4096


def normal_rule(integrands: Integrands, mean: float, std: float, breaks: Sequence[float] = ()) -> tuple[Tensor, Tensor]:
    """Return nodes and weights with ``sum(w g(x)) = E g(x)``, ``x ~ N(mean, std^2)``, that suit all given integrands.

    Gauss-Legendre with 24 nodes on panels that are halved until, for every integrand, a panel and its halves agree to
    1e-13 of ``E |g|``: kinks and jumps are found by themselves and cost some 30 halvings each. (One that is nearer to
    the end of a panel than 0.3 % of its width goes unseen, at an error up to 1e-6: name known ones in ``breaks``.) The
    first panels end at every standard deviation, at the whole numbers up to 16 and at the powers of 2 on both sides
    of 0, so that neither a large standard deviation nor a steep function hides what happens about 0.

    A function with noise of its own (computed in float32 somewhere) is integrated as well as the noise allows.

    Args:
        integrands: From nodes of shape ``(n,)`` to values of shape ``(k, n)``, float64.
        mean: Of x.
        std: Of x, positive.
        breaks: Places where an integrand is known not to be smooth.

    Returns:
        Nodes and weights, both of shape ``(n,)``, float64; the weights contain the density.

    Raises:
        NoGaussianMomentsError: If a value is not finite, or panels still disagree by more than 1e-6 in the end.

    Example:
        >>> x, w = normal_rule(lambda x: x.abs()[None], 0.5, 1.0)
        >>> round((w * x.abs()).sum().item(), 12)
        0.895593114803
    """
    panels = _first_panels(mean, std, breaks)
    coarse = _integrate(integrands, *_nodes(panels, mean, std))[0]
    settled: list[tuple[Tensor, Tensor]] = []
    size = torch.zeros(len(coarse), dtype=torch.float64)
    for level in range(_LEVELS):
        halves = _halved(panels)
        nodes, weights = _nodes(halves, mean, std)
        fine, magnitude = _integrate(integrands, nodes, weights)
        error = (fine.sum(-1) - coarse).abs()
        total = size + magnitude.sum((-1, -2))
        rough = (error > _TOLERANCE * total[:, None] + _NOTHING).any(0)
        if level == _LEVELS - 1 or int(rough.sum()) > _ACTIVE_PANELS:
            _check_noise(error.sum(-1), total)
            rough = torch.zeros_like(rough)
        settled.append((nodes[~rough].flatten(), weights[~rough].flatten()))
        if not bool(rough.any()):
            break
        size = size + magnitude[:, ~rough].sum((-1, -2))
        panels, coarse = halves[rough].flatten(0, 1), fine[:, rough].flatten(1)
    x, w = (torch.cat(parts) for parts in zip(*settled, strict=True))
    return x, w


def _first_panels(mean: float, std: float, breaks: Sequence[float]) -> Tensor:
    """Return the panels to start with, one row ``(left, right)`` each."""
    low, high = mean - REACH * std, mean + REACH * std
    powers = [2.0**k for k in range(-24, max(5, math.ceil(math.log2(max(-low, high, 1.0)))))]
    marks = [*range(-16, 17), *powers, *(-power for power in powers), *breaks]
    steps = torch.linspace(low, high, round(2 * REACH) + 1, dtype=torch.float64)
    inner = torch.tensor([mark for mark in marks if low < mark < high], dtype=torch.float64)
    edges = torch.cat([steps, inner]).sort().values  # a panel of width 0 does no harm
    return torch.stack([edges[:-1], edges[1:]], -1)


def _halved(panels: Tensor) -> Tensor:
    """Return shape ``(panels, 2, 2)``: each panel's halves."""
    left, right = panels.unbind(-1)
    middle = (left + right) / 2
    return torch.stack([torch.stack([left, middle], -1), torch.stack([middle, right], -1)], 1)


def _nodes(panels: Tensor, mean: float, std: float) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of shape ``(..., 24)`` for panels of shape ``(..., 2)``."""
    left, right = panels[..., :1], panels[..., 1:]
    half = (right - left) / 2
    x = (left + right) / 2 + half * _NODES
    return x, half * _WEIGHTS * density((x - mean) / std) / std


def _integrate(integrands: Integrands, nodes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integrals of all integrands over every panel, and those of their absolute values."""
    values = integrands(nodes.flatten())
    if not bool(values.isfinite().all()):
        bad = nodes.flatten()[~values.isfinite().all(0)]
        raise NoGaussianMomentsError(
            f"The function, a derivative or a square of these is not finite at x = {bad[0].item():.6g}, so "
            "there are no moments in float64. Accepted: functions that are finite on the whole line."
        )
    products = values.reshape(-1, *nodes.shape) * weights
    return products.sum(-1), products.abs().sum(-1)


def _check_noise(error: Tensor, size: Tensor) -> None:
    """Refuse an integral that has not settled."""
    excess = error / (size + _NOTHING)
    if bool((excess > _NOISE).any()):
        raise NoGaussianMomentsError(
            f"The quadrature does not settle: halved panels disagree by {excess.max().item():.1e} of the whole, and "
            f"{_NOISE:.0e} is accepted. Is the function random in evaluation mode, or has it very many jumps?"
        )


def quadrature_moments(
    module: nn.Module,
    mean: Tensor,
    std: Tensor,
    kinks: Sequence[tuple[float, float]] = (),
    *,
    registry: Names | None = None,
) -> GaussianMoments:
    """Return the moments of any elementwise activation by adaptive quadrature; see `quadrature.normal_rule`."""
    # ``E f^2``, ``E f'^2`` and the variance are sums of positive terms, so they are accurate to 1e-12 of themselves
    # however small they are. `kink` counts the declared kinks alone.
    mean, std = mean + torch.zeros_like(std), std + torch.zeros_like(mean)

    derivatives = derivatives_of(module, registry)

    def bend(x: Tensor) -> Tensor:
        return derivatives(x, 2).detach()

    def values(x: Tensor) -> Tensor:
        f, slope = derivatives(x, 0).detach(), derivatives(x, 1).detach()
        return torch.stack([f, f * f, slope, slope * slope, bend(x)])

    places = [place for place, _ in kinks]
    rows = []
    for m, s in zip(mean.flatten().tolist(), std.flatten().tolist(), strict=True):
        x, weights = normal_rule(values, m, s, places)
        at_nodes = values(x)
        f, f_squared, slope, slope_squared, _ = (at_nodes @ weights).unbind()
        variance = (at_nodes[0] - f).square() @ weights
        variance = torch.where(variance > _ROUNDED * f_squared, variance, 0.0)
        abs_bend = _expectation_of_size(bend, m, s, places, x)
        rows.append(torch.stack([f, f_squared, variance, slope, slope_squared, abs_bend]))
    columns = torch.stack(rows).reshape(*mean.shape, -1).unbind(-1) if rows else (mean,) * 6
    return GaussianMoments(*(*columns, kink_mass(mean, std, kinks)))


def _expectation_of_size(g: Callable[[Tensor], Tensor], m: float, s: float, places: list[float], x: Tensor) -> Tensor:
    """Return ``E |g|``, split where g changes sign between two nodes: a corner next to a panel's end goes unseen."""
    grid = x.sort().values
    values = g(grid)
    turns = sign_changes(g, grid, values, values.abs() > 1e-12 * values.abs().max())
    nodes, weights = normal_rule(lambda x: g(x).abs()[None], m, s, [*places, *turns])
    return torch.dot(g(nodes).abs(), weights)
