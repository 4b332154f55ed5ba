"""Truncated Taylor series in mpmath: a function's definition, evaluated on one, gives its derivatives to 50 digits.

Nothing here knows a closed form of an activation's derivative: the rules are those of sums, products, quotients, powers
of e and integrals. That makes it an oracle for closed forms.
"""

from __future__ import annotations

from collections.abc import Sequence

import mpmath

LENGTH = 4  # f, f', f'' / 2, f''' / 6
DIGITS = 50


class Taylor:
    """Coefficients ``c[k] = f^(k)(x) / k!`` of a function about a point."""

    def __init__(self, coefficients: Sequence[mpmath.mpf]) -> None:
        self.c = list(coefficients)

    @classmethod
    def variable(cls, x: float | mpmath.mpf) -> Taylor:
        return cls([mpmath.mpf(x), mpmath.mpf(1)] + [mpmath.mpf(0)] * (LENGTH - 2))

    @classmethod
    def constant(cls, value: float | mpmath.mpf) -> Taylor:
        return cls([mpmath.mpf(value)] + [mpmath.mpf(0)] * (LENGTH - 1))

    @staticmethod
    def of(value: Taylor | float) -> Taylor:
        return value if isinstance(value, Taylor) else Taylor.constant(value)

    @property
    def value(self) -> mpmath.mpf:
        return self.c[0]

    def derivatives(self) -> list[mpmath.mpf]:
        """Return f, f', f'' and f''' at the point."""
        return [coefficient * mpmath.factorial(k) for k, coefficient in enumerate(self.c)]

    def __add__(self, other: Taylor | float) -> Taylor:
        return Taylor([a + b for a, b in zip(self.c, Taylor.of(other).c, strict=True)])

    __radd__ = __add__

    def __neg__(self) -> Taylor:
        return Taylor([-a for a in self.c])

    def __sub__(self, other: Taylor | float) -> Taylor:
        return self + (-Taylor.of(other))

    def __rsub__(self, other: float) -> Taylor:
        return Taylor.of(other) - self

    def __mul__(self, other: Taylor | float) -> Taylor:
        b = Taylor.of(other).c
        return Taylor([sum(self.c[j] * b[k - j] for j in range(k + 1)) for k in range(LENGTH)])

    __rmul__ = __mul__

    def __truediv__(self, other: Taylor | float) -> Taylor:
        b = Taylor.of(other).c
        quotient: list[mpmath.mpf] = []
        for k in range(LENGTH):
            quotient.append((self.c[k] - sum(quotient[j] * b[k - j] for j in range(k))) / b[0])
        return Taylor(quotient)

    def __rtruediv__(self, other: float) -> Taylor:
        return Taylor.of(other) / self

    def integrate(self, inner: Taylor, value: mpmath.mpf) -> Taylor:
        """Return the series of ``F(inner)`` from ``value``, ``F`` at the point, and ``self``, that of ``F'(inner)``."""
        tail = [sum(j * inner.c[j] * self.c[k - j] for j in range(1, k + 1)) / k for k in range(1, LENGTH)]
        return Taylor([value, *tail])


def expm1(t: Taylor) -> Taylor:
    """``exp(t) - 1``, with the constant term free of cancellation."""
    series = [mpmath.exp(t.value)]
    for k in range(1, LENGTH):
        series.append(sum(j * t.c[j] * series[k - j] for j in range(1, k + 1)) / k)
    return Taylor([mpmath.expm1(t.value), *series[1:]])


def exp(t: Taylor) -> Taylor:
    """``exp(t)``."""
    return Taylor([mpmath.exp(t.value), *expm1(t).c[1:]])


def log1p(t: Taylor) -> Taylor:
    """``log(1 + t)``."""
    return (1 / (1 + t)).integrate(t, mpmath.log1p(t.value))


def sigmoid(t: Taylor) -> Taylor:
    """``1 / (1 + exp(-t))``."""
    return 1 / (1 + exp(-t))


def tanh(t: Taylor) -> Taylor:
    """``(exp(2 t) - 1) / (exp(2 t) + 1)``, written so that no digits cancel on either side."""
    if t.value > 1:
        return 1 - 2 / (1 + exp(2 * t))
    return expm1(2 * t) / (expm1(2 * t) + 2)


def normal_cdf(t: Taylor) -> Taylor:
    """The integral of ``exp(-t**2 / 2) / sqrt(2 pi)`` from minus infinity."""
    density = exp(-t * t / 2) / mpmath.sqrt(2 * mpmath.pi)
    return density.integrate(t, _normal_cdf(t.value))


def _normal_cdf(x: mpmath.mpf) -> mpmath.mpf:
    """Return the normal distribution's integral; mpmath's erfc fails at 1e150, where one term has 100 digits."""
    if abs(x) < 10**50:
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2
    tail = mpmath.exp(-x * x / 2) / (abs(x) * mpmath.sqrt(2 * mpmath.pi))
    return tail if x < 0 else 1 - tail
