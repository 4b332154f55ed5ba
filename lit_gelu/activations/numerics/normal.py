"""The normal distribution in float64: densities, truncated moments, Owen's T; and what an activation makes of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

CANCELLED = 1e-4  # a sum this much smaller than its terms has lost too many of float64's 16 digits

_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(64))


def density(x: Tensor) -> Tensor:
    """Return ``phi(x) = exp(-x^2 / 2) / sqrt(2 pi)``."""
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def distribution(x: Tensor) -> Tensor:
    """Return ``Phi(x)``, accurate in the left tail."""
    return 0.5 * torch.erfc(-x / math.sqrt(2))


def owens_t(h: Tensor, a: Tensor) -> Tensor:
    """Return Owen's T for ``0 <= a <= 1``: ``(1 / 2 pi) integral_0^a exp(-h^2 (1 + t^2) / 2) / (1 + t^2) dt``."""
    # Gauss-Legendre with 64 nodes: for these a the integrand is so smooth that the error is below 1e-15.
    t = a.unsqueeze(-1) * (_NODES + 1) / 2
    integrand = torch.exp(-0.5 * h.unsqueeze(-1).square() * (1 + t * t)) / (1 + t * t)
    return (integrand * _WEIGHTS).sum(-1) * a / (4 * math.pi)


def interval_moments(
    mean: Tensor, std: Tensor, low: float | Tensor, high: float | Tensor, order: int, rate: float = 0.0
) -> list[Tensor]:
    """Return ``E[x^k exp(rate x) 1(low < x < high)]`` for ``k = 0 .. order``, over ``N(mean, std^2)``."""
    return [moment for moment, _ in sized_interval_moments(mean, std, low, high, order, rate)]


def sized_interval_moments(
    mean: Tensor, std: Tensor, low: float | Tensor, high: float | Tensor, order: int, rate: float = 0.0
) -> list[tuple[Tensor, Tensor]]:
    """Return `interval_moments`, each with the sum of the sizes of its terms: some eps of it is the moment's error."""
    # A bound may be infinite; with a rate other than 0 one must be.
    #
    # With m = mean + rate std^2 and A = rate mean + rate^2 std^2 / 2 the tilted density is e^A N(m, std^2);
    # I_0 = e^A (Phi(b) - Phi(a)), I_{k+1} = m I_k + k std^2 I_{k-1} - std e^A (high^k phi(b) - low^k phi(a)),
    # where a and b are the bounds, less m, in units of std. e^A may overflow alone, so
    # e^A phi(b) = exp(rate high) phi((high - mean) / std) and Phi(b) = phi(b) sqrt(pi / 2) erfcx(-b / sqrt 2) are
    # used in the tail.
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
    more = torch.where(a > 0, tail(-a, low), tail(b, high))
    less = torch.where(a > 0, tail(-b, high), tail(a, low))
    moments = [(torch.zeros_like(more), torch.zeros_like(more)), (more - less, more + less)]  # of k - 1, of k
    at_low, at_high = edge(low), edge(high)
    for k in range(order):
        (before, size_before), (moment, size) = moments[-2:]
        left, right = std * powers(low, at_low, k), std * powers(high, at_high, k)
        moments.append((
            shifted * moment + k * std**2 * before - (right - left),
            shifted.abs() * size + k * std**2 * size_before + (right.abs() + left.abs()),
        ))
    return moments[1:]


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

    @property
    def fields(self) -> tuple[Tensor, ...]:
        """All of them, in the order above."""
        return tuple(vars(self).values())


def kink_mass(mean: Tensor, std: Tensor, kinks: Sequence[tuple[float, float]]) -> Tensor:
    """Return ``sum |jump| p(x)`` over kinks, ``p`` the density of ``N(mean, std^2)``."""
    total = torch.zeros_like(mean + std)
    for place, jump in kinks:
        total = total + abs(jump) * density((place - mean) / std) / std
    return total
