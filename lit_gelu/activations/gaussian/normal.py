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
    where ``a`` and ``b`` are the bounds in units of ``std``. ``e^A`` is kept within the exponentials: it may overflow
    alone.

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

    def edge(bound: Tensor, scaled: Tensor, power: int) -> Tensor:
        value = bound**power * torch.exp(log_scale - 0.5 * scaled * scaled) / math.sqrt(2 * math.pi)
        return torch.where(bound.isinf(), 0.0, value)

    # Of both ways to write Phi(b) - Phi(a), the one whose terms are in the tail.
    right = a > 0
    upper, lower = torch.where(right, -a, b), torch.where(right, -b, a)
    tail = [torch.exp(log_scale + torch.special.log_ndtr(end)) for end in (upper, lower)]
    moments = [tail[0] - tail[1]]
    for k in range(order):
        before = k * std**2 * moments[k - 1] if k else 0.0
        moments.append(shifted * moments[k] + before - std * (edge(high, b, k) - edge(low, a, k)))
    return moments
