"""Closed forms for ``x Phi((x - mu) / sigma)``; ``mu = 0, sigma = 1`` is GELU."""

import math

import torch
from torch import Tensor

from lit_gelu.activations.numerics.moments import GaussianMoments
from lit_gelu.activations.numerics.normal import density, distribution, interval_moments, owens_t

_STEEP = 1e4


def gelu_moments(mean: Tensor, std: Tensor, mu: float = 0.0, sigma: float = 1.0) -> GaussianMoments:
    """Return the moments of GELU, in closed form.

    With ``u = (x - mu) / sigma ~ N(m, s^2)``, ``c = mu / sigma``, ``q^2 = 1 + s^2``, ``r^2 = 1 + 2 s^2``,
    ``h = m / q`` and ``k = m / (q r)``: ``f = sigma (c + u) Phi(u)``, ``f' = Phi(u) + (c + u) phi(u)``,
    ``f'' = phi(u) (2 - c u - u^2) / sigma``, and with Owen's T

    * ``E Phi = Phi(h)``, ``E phi = phi(h) / q``, ``E Phi^2 = Phi(h) - 2 T(h, 1 / r)``;
    * ``E Phi phi = phi(h) Phi(k) / q``, ``E u Phi phi = phi(h) / q (m Phi(k) / q^2 + s^2 phi(k) / (q r))``;
    * ``E phi^2 = exp(-m^2 / r^2) / (2 pi r)``; under ``phi^2`` u has mean ``m / r^2`` and variance ``s^2 / r^2``;
    * ``E u g = m E g + s^2 E g'`` (Stein) gives the rest.

    Args:
        mean: Of the pre-activations, float64.
        std: Their standard deviation.
        mu: Of the activation.
        sigma: Of the activation.

    Returns:
        The moments; there is no kink. The variance is NaN where ``std`` is 10,000 ``sigma`` and more: too many digits
        are lost there.

    Example:
        >>> moments = gelu_moments(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
        >>> round(moments.value_squared.item(), 8), round(moments.derivative_squared.item(), 8)
        (0.42522148, 0.45585087)
    """
    m, s, c = (mean - mu) / sigma, std / sigma, mu / sigma
    q, r = torch.sqrt(1 + s * s), torch.sqrt(1 + 2 * s * s)
    h, k = m / q, m / (q * r)
    gate, gate_density = distribution(h), density(h) / q
    gate_squared = gate - 2 * owens_t(h, 1 / r)
    mixed = gate_density * distribution(k)
    mixed_u = gate_density * (m / q**2 * distribution(k) + s * s / (q * r) * density(k))
    density_squared = torch.exp(-((m / r) ** 2)) / (2 * math.pi * r)
    centre, spread = m / r**2, (s / r) ** 2
    u_gate_squared = m * gate_squared + 2 * s * s * mixed
    u_squared_gate_squared = (m * m + s * s) * gate_squared + 4 * m * s * s * mixed
    u_squared_gate_squared = u_squared_gate_squared + 2 * s**4 * (density_squared - mixed_u)
    value = sigma * ((c + m) * gate + s * s * gate_density)
    value_squared = sigma**2 * (c * c * gate_squared + 2 * c * u_gate_squared + u_squared_gate_squared)
    return GaussianMoments(
        value=value,
        value_squared=value_squared,
        variance=torch.where(s < _STEEP, value_squared - value * value, torch.nan),
        derivative=gate + (c + m / q**2) * gate_density,
        derivative_squared=gate_squared + 2 * (c * mixed + mixed_u) + density_squared * ((c + centre) ** 2 + spread),
        abs_second_derivative=_abs_second(m / q**2, s / q, c) * gate_density / sigma,
        kink=torch.zeros_like(m + s),
    )


def _abs_second(mean: Tensor, std: Tensor, c: float) -> Tensor:
    """Return ``E |2 - c u - u^2|`` for ``u ~ N(mean, std^2)``: positive between the roots, negative outside."""
    reach = math.sqrt(c * c + 8)
    roots = (-c - reach) / 2, (-c + reach) / 2

    def integral(low: float, high: float) -> Tensor:
        zeroth, first, second = interval_moments(mean, std, low, high, 2)
        return 2 * zeroth - c * first - second

    return integral(*roots) - integral(-math.inf, roots[0]) - integral(roots[1], math.inf)
