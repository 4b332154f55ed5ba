"""The normal and the logistic distribution, and their products with ``x``, without underflow, overflow or ``inf * 0``.

Arguments ``u`` are within ``NORMAL_LIMIT`` or ``LOGISTIC_LIMIT`` and the others finite, unless a line says otherwise. A
product underflows only if it is itself too small.

Three rules hold for every function of this folder that is built on an exponential:

* No difference from one: ``Phi(u) = erfc(-u / sqrt 2) / 2``, and ``s(-u)`` is computed by itself. ``1 + erf`` and
  ``1 - s`` lose all digits in the tail, as torch's own ``F.gelu`` and ``special.ndtr`` do (``docs/numerics.md``).
* A tail ``a exp(-t)`` is computed as ``(a h) h`` with ``h = exp(-t / 2)``: the factor ``exp(-t)`` alone would be
  subnormal, with few digits, where the product is not.
* Arguments are clamped to where ``h`` is 0 in every dtype, so that nothing infinite is multiplied by 0, neither in the
  value nor in what autograd (either mode) computes of it.
"""

import math

import torch
from torch import Tensor

from lit_gelu.activations.numerics.arguments import largest

SQRT_TWO = math.sqrt(2.0)
SQRT_HALF = math.sqrt(0.5)
SQRT_HALF_REST = -4.833646656726457e-17  # sqrt(1/2) - SQRT_HALF
INVERSE_SQRT_TWO_PI = 1.0 / math.sqrt(2.0 * math.pi)

# exp(-u**2 / 4) and exp(-u / 2) are 0 in float64 from 54.6 and 1490.3 on, in float32 earlier.
NORMAL_LIMIT = 64.0
LOGISTIC_LIMIT = 1500.0

# Below it exp(-|u|) is taken as two factors exp(-|u| / 2): in float32 it soon becomes subnormal itself.
LOGISTIC_TAIL = -64.0

# Below it Phi comes from its asymptotic series. There Phi is still a normal number, and the first term left out is
# below half a unit in the last place.
NORMAL_TAIL = {torch.float32: -12.0, torch.float64: -30.0}

# Veltkamp's splitting constant, 2**ceil(digits / 2) + 1: it cuts a number into two of half as many digits.
SPLITTER = {torch.float32: 4097.0, torch.float64: 134217729.0}


def normal_density_root(u: Tensor) -> Tensor:
    """Return ``h = exp(-u**2 / 4)``, so that ``phi(u) = h * h / sqrt(2 pi)``."""
    return torch.exp(-0.25 * u * u)


def times_normal_density(factor: Tensor, u: Tensor) -> Tensor:
    """Return ``factor * phi(u)``."""
    root = normal_density_root(u)
    return (INVERSE_SQRT_TWO_PI * factor * root) * root


def normal_cdf(u: Tensor) -> Tensor:
    """Return ``Phi(u)``."""
    return 0.5 * torch.erfc(-SQRT_HALF * u)


def normal_tail_ratio(u: Tensor) -> Tensor:
    """Return ``Phi(u) / phi(u)`` below ``NORMAL_TAIL``: ``-1/u (1 - 1/u**2 + 3/u**4 - 15/u**6 ...)``."""
    # Source: Abramowitz and Stegun 1964, equation 26.2.12.
    inverse_square = 1.0 / (u * u)
    series = torch.ones_like(u)
    for odd in (15, 13, 11, 9, 7, 5, 3, 1):
        series = 1.0 - odd * inverse_square * series
    return -series / u


def times_normal_cdf(x: Tensor, u: Tensor) -> Tensor:
    """Return ``x * Phi(u)``."""
    start = NORMAL_TAIL[u.dtype]
    tail = u.clamp(max=start)
    return torch.where(u < start, times_normal_density(x * normal_tail_ratio(tail), tail), x * normal_cdf(u))


def normal_cdf_plus_density(factor: Tensor, u: Tensor) -> Tensor:
    """Return ``Phi(u) + factor * phi(u)``."""
    # In the left tail it is one product, as the sum of two subnormal numbers carries the rounding of both. Elsewhere
    # the rounding of the arguments of erfc and exp is put back to first order.
    start = NORMAL_TAIL[u.dtype]
    tail = u.clamp(max=start)
    density = INVERSE_SQRT_TWO_PI * torch.exp(-0.5 * (u * u))
    argument_error = SQRT_TWO * (product_error(u, SQRT_HALF) + SQRT_HALF_REST * u)
    correction = density * (argument_error - 0.5 * factor * product_error(u, u))
    body = (normal_cdf(u) + correction) + factor * density
    return torch.where(u < start, times_normal_density(factor + normal_tail_ratio(tail), tail), body)


def unbounded_normal_gate(x: Tensor, u: Tensor) -> Tensor:
    """Return ``x * Phi(u)`` for any ``x`` and ``u``: exactly ``x`` where the gate is open, 0 where it is shut."""
    finite = x.clamp(-largest(x), largest(x))
    return torch.where(u > NORMAL_LIMIT, x, times_normal_cdf(finite, u.clamp(-NORMAL_LIMIT, NORMAL_LIMIT)))


def decay(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``e = exp(-|u|)`` and two factors of it, to be multiplied from both sides of a product."""
    # In the tail both are exp(-|u| / 2), else e and 1, rounded once less. The derivatives at 0 are those of exp(-u);
    # torch.abs would give 0.
    negative = torch.where(u < 0, u, -u)
    e, root, far = torch.exp(negative), torch.exp(0.5 * negative), negative < LOGISTIC_TAIL
    return e, torch.where(far, root, e), torch.where(far, root, 1.0)


def times_logistic(x: Tensor | float, u: Tensor) -> Tensor:
    """Return ``x * s(u)`` with ``s(u) = 1 / (1 + exp(-u))``; ``x`` may be infinite where ``s(u)`` is not 0."""
    e, inner, outer = decay(u)
    return (x * torch.where(u < 0, inner, 1.0) / (1.0 + e)) * torch.where(u < 0, outer, 1.0)


def times_logistic_density(factor: Tensor | float, u: Tensor) -> Tensor:
    """Return ``factor * s(u) * s(-u)``."""
    e, inner, outer = decay(u)
    return (factor * inner / ((1.0 + e) * (1.0 + e))) * outer


def logistic_plus_density(factor: Tensor, u: Tensor, correction: Tensor | float = 0.0) -> Tensor:
    """Return ``s(u) + factor * s(u) * s(-u)``; ``correction`` is what left of 0 is too small to change the factor."""
    # Left of 0 that is e (1 + factor + e) / (1 + e)**2 with e = exp(u): the terms cancel before they are rounded.
    e, inner, outer = decay(u)
    squared = (1.0 + e) * (1.0 + e)
    left = (inner * (1.0 + factor + (e + correction)) / squared) * outer
    return torch.where(u < 0, left, 1.0 / (1.0 + e) + (factor * inner / squared) * outer)


def logistic_curvature(
    start: Tensor | float, slope: Tensor, u: Tensor, *, factor: Tensor | float = 1.0, correction: Tensor | float = 0.0
) -> Tensor:
    """Return ``factor * s(u) s(-u) (start - slope tanh(|u| / 2))``, the form of the second derivative of ``x s(u)``."""
    # That is factor * e (start - slope + e (start + slope)) / (1 + e)**3 with e = exp(-|u|), where the terms
    # cancel before they are rounded; correction belongs to start - slope, which it may be too small to change.
    e, inner, outer = decay(u)
    bracket = (start - slope) + (e * (start + slope) + correction)
    return (inner * (factor * bracket) / ((1.0 + e) * (1.0 + e) * (1.0 + e))) * outer


def unbounded_logistic_gate(x: Tensor, u: Tensor) -> Tensor:
    """Return ``x * s(u)`` for any ``x`` and ``u``: exactly ``x`` where the gate is open, 0 where it is shut."""
    shut_or_open = u.abs() > LOGISTIC_LIMIT
    finite = torch.where(shut_or_open, x.clamp(-largest(x), largest(x)), x)
    return torch.where(u > LOGISTIC_LIMIT, x, times_logistic(finite, u.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)))


# Near a zero of a derivative g + x g' the two terms nearly cancel, and the rounding of their arguments would show.
# There the error is computed exactly, and put back to first order.


def product_error(a: Tensor, b: Tensor | float) -> Tensor:
    """Return ``a b - fl(a b)``, exactly."""
    # Source: Dekker 1971, "A floating-point technique for extending the available precision", equation 5.7.
    a_high, a_low = _split(a)
    # Not torch.as_tensor, whose copy from the host would wait for the device.
    b = b if isinstance(b, Tensor) else torch.full((), b, dtype=a.dtype, device=a.device)
    b_high, b_low = _split(b)
    return ((a_high * b_high - a * b) + a_high * b_low + a_low * b_high) + a_low * b_low


def sum_error(a: Tensor | float, b: Tensor) -> Tensor:
    """Return ``a + b - fl(a + b)``, exactly."""
    # Source: Knuth 1969, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B.
    total = a + b
    rest = total - a
    return (a - (total - rest)) + (b - rest)


def _split(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return two numbers of half as many digits whose sum is ``a``."""
    scaled = SPLITTER[a.dtype] * a
    high = scaled - (scaled - a)
    return high, a - high
