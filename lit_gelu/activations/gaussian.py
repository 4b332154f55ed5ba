"""What activations make of normally distributed pre-activations, by adaptive Gauss-Legendre quadrature; and gains.

A gain says by how much weights must be scaled so that an activation keeps the size of signals, or of gradients. A layer
whose weights have variance ``g^2 / fan_in`` turns activations ``f(x)`` into pre-activations of variance
``g^2 E f(x)^2``, and gradients of variance v at its outputs into gradients of variance ``v g^2 E f'(x)^2`` at ``x``
(for equal widths). He et al. 2015 (arXiv 1502.01852) use the first with ReLU; the second is ``chi_1`` of Poole et al.
2016 (arXiv 1606.05340) and Schoenholz et al. 2017 (arXiv 1611.01232). The variance gain is the ``gamma`` of NFNets
(Brock, De and Smith 2021, arXiv 2101.08692), for weights whose rows have mean 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.activations.naming.info import ActivationGains
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.scalar import ScalarActivation
from lit_gelu.activations.numerics.sampling import sign_changes
from lit_gelu.errors import ArgumentError

Integrands = Callable[[Tensor], Tensor]

KINDS = {"forward": "value_squared", "variance": "variance", "backward": "derivative_squared"}
"""The field of `GaussianMoments` that each kind of gain is one over the square root of."""

REACH = 37.0  # standard deviations; a little further the density is no normal number of float64
_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(24))
_TOLERANCE = 1e-13
_NOISE = 1e-6
_NOTHING = 1e-280  # integrals below this have lost digits to subnormal numbers
_ROUNDED = 1e-28  # a variance this much smaller than the square is that of float64's last digit: f is constant
_LEVELS = 60
_ACTIVE_PANELS = 4096


@dataclass(frozen=True)
class GaussianMoments:
    """Expectations over ``x ~ N(mean, std^2)``; every field is a float64 tensor of the broadcast shape of mean and std.

    Args:
        value: ``E f``.
        value_squared: ``E f^2``; ``1 / sqrt`` of it is the forward gain.
        variance: ``E f^2 - (E f)^2``; ``1 / sqrt`` of it is the variance gain.
        derivative: ``E f'``.
        derivative_squared: ``E f'^2``; times the weights' variance, the factor by which a layer scales squared
            gradients.
        abs_second_derivative: ``E |f''|``, the smooth part: what `kink` adds is not in it.
        kink: ``sum |jump of f'| p(x)`` over the kinks, ``p`` the density of x: the part of E|f''| that sits in kinks.
    """

    value: Tensor
    value_squared: Tensor
    variance: Tensor
    derivative: Tensor
    derivative_squared: Tensor
    abs_second_derivative: Tensor
    kink: Tensor


def gaussian_moments(
    activation: Any, mean: float | Tensor = 0.0, std: float | Tensor = 1.0, *, registry: Names | None = None
) -> GaussianMoments:
    """Return what an activation makes of ``x ~ N(mean, std^2)``.

    ``E f^2``, ``E f'^2`` and the variance are sums of positive terms, accurate to 1e-11 of themselves, also where the
    activation is nearly dead or nearly linear. Where it saturates at a value other than 0, such as ``elu`` at
    ``N(-20, 0.5^2)``, the variance is accurate to 1e-8 of itself. Beyond ``|mean| / std`` of 1e6 the digits of x itself
    limit all of them.

    Args:
        activation: Any spec of an elementwise activation, whose learned parameters count as they start; of a module
            with parameters they count as they are now.
        mean: Of the pre-activations; a number or a tensor.
        std: Their standard deviation, positive.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The moments, float64, of the broadcast shape, on the CPU. A stochastic activation counts in evaluation mode.

    Raises:
        ArgumentError: If ``std`` is not positive, a number not finite, or the activation not elementwise or not finite
            everywhere.

    Example:
        >>> moments = gaussian_moments("silu", mean=0.0, std=torch.tensor([0.5, 1.0]))
        >>> [round(value, 8) for value in moments.derivative_squared.tolist()]
        [0.30030799, 0.37948235]
    """
    m, s = (torch.as_tensor(part, dtype=torch.float64).detach().cpu() for part in (mean, std))
    if not bool((s > 0).all() & s.isfinite().all() & m.isfinite().all()):
        raise ArgumentError(
            f"mean={m.tolist()}, std={s.tolist()} is not accepted: give finite numbers and a positive std."
        )
    m, s = m + torch.zeros_like(s), s + torch.zeros_like(m)
    scalar = ScalarActivation.of(activation, registry)
    kinks = scalar.kinks
    if kinks and isinstance(activation, nn.Module) and any(True for _ in activation.parameters()):  # the jumps may move
        places = torch.tensor([place for place, _ in kinks], dtype=torch.float64)
        left, right = (scalar.functions[1](places + sign * 2.0**-20 * (1 + places.abs())) for sign in (-1, 1))
        kinks = tuple(zip(places.tolist(), (right - left).tolist(), strict=True))
    rows = [_moments(scalar, *pair) for pair in zip(m.flatten().tolist(), s.flatten().tolist(), strict=True)]
    columns = torch.stack(rows).reshape(*m.shape, -1).unbind(-1) if rows else (m,) * 6
    return GaussianMoments(*(*columns, kink_mass(m, s, kinks)))


def gain(
    activation: Any, kind: str = "forward", mean: float = 0.0, std: float = 1.0, *, registry: Names | None = None
) -> float:
    """Return a gain of an activation for pre-activations ``x ~ N(mean, std^2)``.

    ``forward = 1 / sqrt(E f^2)``, ``variance = 1 / sqrt(E f^2 - (E f)^2)``, ``backward = 1 / sqrt(E f'^2)``. The first
    two bring ``f(x)`` to size 1: to keep pre-activations at their own ``std``, multiply by it.

    Gains are accurate to 1e-11 of themselves.

    Args:
        activation: Any spec of an elementwise activation; see `gaussian_moments`.
        kind: ``"forward"``, ``"variance"`` or ``"backward"``.
        mean: Of the pre-activations.
        std: Their standard deviation, positive.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Raises:
        ArgumentError: If the kind is none of these, ``std`` is not positive, it is not elementwise, or the expectation
            is 0 or does not exist.

    Example:
        >>> round(gain("gelu"), 6), round(gain("gelu", "variance"), 6), round(gain("gelu", "backward"), 6)
        (1.53353, 1.700926, 1.481114)
        >>> round(0.5 * gain("gelu", std=0.5), 6)
        1.730252
    """
    if kind not in KINDS:
        raise ArgumentError(f"kind={kind!r} is not accepted. Accepted: {', '.join(map(repr, KINDS))}.")
    return _gain(gaussian_moments(activation, float(mean), float(std), registry=registry), activation, kind)


def gains(activation: Any, *, registry: Names | None = None) -> ActivationGains:
    """Return all three gains for standard normal pre-activations."""
    moments = gaussian_moments(activation, registry=registry)
    return ActivationGains(**{kind: _gain(moments, activation, kind) for kind in KINDS})


def _gain(moments: GaussianMoments, activation: Any, kind: str) -> float:
    expectation = getattr(moments, KINDS[kind]).item()
    if not expectation > 0.0:
        raise ArgumentError(
            f"{str(activation)!r} has no {kind} gain: the {KINDS[kind].replace('_', ' ')} has the expectation "
            f"{expectation:g} for these pre-activations, and the gain is one over its square root."
        )
    return 1.0 / math.sqrt(expectation)


def _moments(scalar: ScalarActivation, mean: float, std: float) -> Tensor:
    f, slope, bend = scalar.functions
    places = [place for place, _ in scalar.kinks]

    def integrands(x: Tensor) -> Tensor:
        y, first = f(x), slope(x)
        return torch.stack([y, y * y, first, first * first, bend(x)])

    x, weights = normal_rule(integrands, mean, std, places)
    at_nodes = integrands(x)
    value, value_squared, first, first_squared, _ = (at_nodes @ weights).unbind()
    variance = (at_nodes[0] - value).square() @ weights
    variance = torch.where(variance > _ROUNDED * value_squared, variance, 0.0)
    # |f''| is split where f'' changes its sign between two nodes: a corner next to a panel's end goes unseen.
    grid = x.sort().values
    bends = bend(grid)
    turns = sign_changes(bend, grid, bends, bends.abs() > 1e-12 * bends.abs().max())
    x, weights = normal_rule(lambda x: bend(x).abs()[None], mean, std, [*places, *turns])
    return torch.stack([value, value_squared, variance, first, first_squared, bend(x).abs() @ weights])


def kink_mass(mean: Tensor, std: Tensor, kinks: Sequence[tuple[float, float]]) -> Tensor:
    """Return ``sum |jump| p(x)`` over kinks, ``p`` the density of ``N(mean, std^2)``."""
    total = torch.zeros_like(mean + std)
    for place, jump in kinks:
        total = total + abs(jump) * _density((place - mean) / std) / std
    return total


def _density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def normal_rule(integrands: Integrands, mean: float, std: float, breaks: Sequence[float] = ()) -> tuple[Tensor, Tensor]:
    """Return nodes and weights with ``sum(w g(x)) = E g(x)``, ``x ~ N(mean, std^2)``, that suit all given integrands.

    Gauss-Legendre with 24 nodes on panels that are halved until, for every integrand, a panel and its halves agree to
    1e-13 of ``E |g|``: kinks and jumps are found by themselves and cost some 30 halvings each. (One that is nearer to
    the end of a panel than 0.3 % of its width goes unseen, at an error up to 1e-6: name known ones in ``breaks``.) The
    first panels end at every standard deviation, at the whole numbers up to 16 and at the powers of 2 on both sides
    of 0, so that neither a large standard deviation nor a steep function hides what happens about 0.

    A function with noise of its own (computed in float32 somewhere) is integrated as well as the noise allows.

    Integrands take nodes of shape ``(n,)`` to values of shape ``(k, n)``; the weights contain the density.

    Raises:
        ArgumentError: If a value is not finite, or panels still disagree by more than 1e-6 in the end.

    Example:
        >>> x, w = normal_rule(lambda x: x.abs()[None], 0.5, 1.0)
        >>> round((w * x.abs()).sum().item(), 12)
        0.895593114803
    """
    low, high = mean - REACH * std, mean + REACH * std
    powers = [2.0**k for k in range(-24, max(5, math.ceil(math.log2(max(-low, high, 1.0)))))]
    marks = [*range(-16, 17), *powers, *(-power for power in powers), *breaks]
    steps = torch.linspace(low, high, round(2 * REACH) + 1, dtype=torch.float64)
    inner = torch.tensor([mark for mark in marks if low < mark < high], dtype=torch.float64)
    edges = torch.cat([steps, inner]).sort().values  # a panel of width 0 does no harm
    panels = torch.stack([edges[:-1], edges[1:]], -1)
    coarse = _integrate(integrands, *_nodes(panels, mean, std))[0]
    settled: list[tuple[Tensor, Tensor]] = []
    size = torch.zeros(len(coarse), dtype=torch.float64)
    for level in range(_LEVELS):
        left, right = panels.unbind(-1)
        middle = (left + right) / 2
        halves = torch.stack([torch.stack([left, middle], -1), torch.stack([middle, right], -1)], 1)
        nodes, weights = _nodes(halves, mean, std)
        fine, magnitude = _integrate(integrands, nodes, weights)
        error = (fine.sum(-1) - coarse).abs()
        total = size + magnitude.sum((-1, -2))
        rough = (error > _TOLERANCE * total[:, None] + _NOTHING).any(0)
        if level == _LEVELS - 1 or int(rough.sum()) > _ACTIVE_PANELS:
            excess = (error.sum(-1) / (total + _NOTHING)).max().item()
            if excess > _NOISE:
                raise ArgumentError(
                    f"The quadrature does not settle: halved panels disagree by {excess:.1e} of the whole, and "
                    f"{_NOISE:.0e} is accepted. Is the function random in evaluation mode, or has it very many jumps?"
                )
            rough = torch.zeros_like(rough)
        settled.append((nodes[~rough].flatten(), weights[~rough].flatten()))
        if not bool(rough.any()):
            break
        size = size + magnitude[:, ~rough].sum((-1, -2))
        panels, coarse = halves[rough].flatten(0, 1), fine[:, rough].flatten(1)
    x, w = (torch.cat(parts) for parts in zip(*settled, strict=True))
    return x, w


def _nodes(panels: Tensor, mean: float, std: float) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of shape ``(..., 24)`` for panels of shape ``(..., 2)``."""
    left, right = panels[..., :1], panels[..., 1:]
    half = (right - left) / 2
    x = (left + right) / 2 + half * _NODES
    return x, half * _WEIGHTS * _density((x - mean) / std) / std


def _integrate(integrands: Integrands, nodes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integrals of all integrands over every panel, and those of their absolute values."""
    values = integrands(nodes.flatten())
    if not bool(values.isfinite().all()):
        bad = nodes.flatten()[~values.isfinite().all(0)]
        raise ArgumentError(
            f"The function, a derivative or a square of these is not finite at x = {bad[0].item():.6g}, so "
            "there are no moments in float64. Accepted: functions that are finite on the whole line."
        )
    products = values.reshape(-1, *nodes.shape) * weights
    return products.sum(-1), products.abs().sum(-1)
