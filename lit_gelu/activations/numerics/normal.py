"""The normal distribution in float64: densities, truncated moments, Owen's T."""

import math

import numpy as np
import torch
from torch import Tensor

_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(64))


def density(x: Tensor) -> Tensor:
    """Return ``phi(x) = exp(-x^2 / 2) / sqrt(2 pi)``.

    Args:
        x: Any shape, float64.

    Returns:
        A tensor like ``x``.
    """
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def distribution(x: Tensor) -> Tensor:
    """Return ``Phi(x)``, accurate in the left tail.

    Args:
        x: Any shape, float64.

    Returns:
        A tensor like ``x``.
    """
    return 0.5 * torch.erfc(-x / math.sqrt(2))


def owens_t(h: Tensor, a: Tensor) -> Tensor:
    """Return Owen's T function for ``0 <= a <= 1``: ``(1 / 2 pi) integral_0^a exp(-h^2 (1 + t^2) / 2) / (1 + t^2) dt``.

    Gauss-Legendre with 64 nodes: for these ``a`` the integrand is so smooth that the error is below 1e-15.

    Args:
        h: Any shape, float64.
        a: Broadcastable to ``h``.

    Returns:
        A tensor of the broadcast shape.

    Example:
        >>> owens_t(torch.tensor(0.0), torch.tensor(1.0, dtype=torch.float64))
        tensor(0.1250, dtype=torch.float64)
    """
    t = a.unsqueeze(-1) * (_NODES + 1) / 2
    integrand = torch.exp(-0.5 * h.unsqueeze(-1).square() * (1 + t * t)) / (1 + t * t)
    return (integrand * _WEIGHTS).sum(-1) * a / (4 * math.pi)


def interval_moments(
    mean: Tensor, std: Tensor, low: float | Tensor, high: float | Tensor, order: int, rate: float = 0.0
) -> list[Tensor]:
    """Return ``E[x^k exp(rate x) 1(low < x < high)]`` for ``k = 0 .. order``, over ``N(mean, std^2)``.

    With ``m = mean + rate std^2`` and ``A = rate mean + rate^2 std^2 / 2`` the tilted density is ``e^A N(m, std^2)``;
    ``I_0 = e^A (Phi(b) - Phi(a))``, ``I_{k+1} = m I_k + k std^2 I_{k-1} - std e^A (high^k phi(b) - low^k phi(a))``,
    where ``a`` and ``b`` are the bounds, less m, in units of ``std``. ``e^A`` may overflow alone, so
    ``e^A phi(b) = exp(rate high) phi((high - mean) / std)`` and ``Phi(b) = phi(b) sqrt(pi / 2) erfcx(-b / sqrt 2)`` are
    used in the tail.

    Args:
        mean: Any shape, float64.
        std: Likewise, positive.
        low: Lower bound; may be ``-inf``.
        high: Upper bound; may be ``inf``.
        order: The highest power.
        rate: The exponential's rate; with one other than 0 one bound must be infinite.

    Returns:
        ``order + 1`` tensors.

    Example:
        >>> zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
        >>> [round(moment.item(), 6) for moment in interval_moments(zero, one, 0.0, float("inf"), 2)]
        [0.5, 0.398942, 0.5]
    """
    shifted, log_scale = mean + rate * std**2, rate * mean + (rate * std) ** 2 / 2
    low, high = (torch.as_tensor(bound, dtype=torch.float64).expand_as(mean + std) for bound in (low, high))
    a, b = (low - shifted) / std, (high - shifted) / std

    def edge(bound: Tensor) -> Tensor:
        value = torch.exp(rate * bound - 0.5 * ((bound - mean) / std) ** 2) / math.sqrt(2 * math.pi)
        return torch.where(bound.isinf(), 0.0, value)

    def tail(end: Tensor, bound: Tensor) -> Tensor:
        near = math.sqrt(math.pi / 2) * torch.special.erfcx(-end / math.sqrt(2)) * edge(bound)
        return torch.where(end < 0, near, torch.exp(log_scale) * distribution(end))

    def powers(bound: Tensor, at_bound: Tensor, k: int) -> Tensor:
        return torch.where(bound.isinf(), 0.0, bound**k * at_bound)

    # Of both ways to write Phi(b) - Phi(a), the one whose terms are in the tail.
    right = a > 0
    moments = [torch.where(right, tail(-a, low) - tail(-b, high), tail(b, high) - tail(a, low))]
    at_low, at_high = edge(low), edge(high)
    for k in range(order):
        before = k * std**2 * moments[k - 1] if k else 0.0
        moments.append(shifted * moments[k] + before - std * (powers(high, at_high, k) - powers(low, at_low, k)))
    return moments
