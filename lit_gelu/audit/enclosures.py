"""Intervals that hold f, f' and f'' of an activation at a point: mpmath's, rounded outwards.

An activation's definition is evaluated on a truncated Taylor series: no closed form of a derivative, and nothing of
what `lit_gelu.activations` computes, comes in. Elementary functions are widened by 256 units in the last place, though
mpmath computes them with 14 binary digits more than it returns.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mpmath import libmp
from mpmath.ctx_iv import MPIntervalContext

from lit_gelu.activations import ActivationSpec
from lit_gelu.errors import ArgumentError

iv = MPIntervalContext()  # not mpmath.iv, whose precision is everybody's
Number = float | str  # a text is a decimal number, which no float need be

_ZERO, _HALF, _ONE = iv.mpf(0), iv.mpf(0.5), iv.mpf(1)
_TAIL = 20  # from here on the normal distribution is bounded by its density: float32 ends at 14.2
# Klambauer et al. 2017, Self-Normalizing Neural Networks (arXiv 1706.02515), with the digits that torch has.
_SELU_ALPHA = "1.6732632423543772848170429916717"
_SELU_SCALE = "1.0507009873554804934193349852946"
# On the values that a module begins with.
_WITHOUT_EFFECT = {"inplace", "memory", "learnable", "channels", "channel_dim"}


@functools.lru_cache(4096)
def _number(value: Number, precision: int) -> Any:  # noqa: ARG001 - that which is set: a key of the cache
    return iv.mpf(value)


class Jet:
    """Intervals of ``f``, ``f'`` and ``f'' / 2`` at a point."""

    def __init__(self, f: Any, f1: Any = _ZERO, f2: Any = _ZERO) -> None:
        self.f, self.f1, self.f2 = f, f1, f2

    @staticmethod
    def of(value: "Jet | Number") -> "Jet":
        """Return a number as a constant function."""
        return value if isinstance(value, Jet) else Jet(_number(value, iv.prec))

    @property
    def point(self) -> float:
        """The value, where it is exact; infinite where it leaves the range of float64."""
        return float(libmp.to_float(self.f._mpi_[0]))

    def compose(self, g: Any, g1: Any, g2: Any) -> "Jet":
        """Return ``g(f)``, from g, g' and g'' / 2 at f."""
        return Jet(g, g1 * self.f1, g1 * self.f2 + g2 * (self.f1 * self.f1))

    def __add__(self, other: "Jet | Number") -> "Jet":
        b = Jet.of(other)
        return Jet(self.f + b.f, self.f1 + b.f1, self.f2 + b.f2)

    def __neg__(self) -> "Jet":
        return Jet(-self.f, -self.f1, -self.f2)

    def __mul__(self, other: "Jet | Number") -> "Jet":
        b = Jet.of(other)
        return Jet(self.f * b.f, self.f * b.f1 + self.f1 * b.f, self.f * b.f2 + self.f1 * b.f1 + self.f2 * b.f)

    def __truediv__(self, other: "Jet | Number") -> "Jet":
        b = Jet.of(other)
        f = self.f / b.f
        f1 = (self.f1 - f * b.f1) / b.f
        return Jet(f, f1, (self.f2 - f * b.f2 - f1 * b.f1) / b.f)


def _widened(value: Any) -> Any:
    unit = iv.ldexp(1, 8 - iv.prec)
    return value * iv.mpf([1 - unit.b, 1 + unit.b])


def exp(t: Jet) -> Jet:
    """``exp(t)``."""
    e = _ONE if t.f == _ZERO else _widened(iv.exp(t.f))
    return t.compose(e, e, e * _HALF)


def log1p(t: Jet) -> Jet:
    """``log(1 + t)`` for positive ``t``."""
    slope = _ONE / (_ONE + t.f)
    # t (1 - t) < log(1 + t) < t, where 1 + t would lose the digits of t.
    value = t.f * iv.mpf([(_ONE - t.f).a, 1]) if t.f < iv.ldexp(1, -iv.prec) else _widened(iv.log(_ONE + t.f))
    return t.compose(value, slope, -(slope * slope * _HALF))


def normal_cdf(x: Jet) -> Jet:
    """The integral of ``exp(-x**2 / 2) / sqrt(2 pi)`` from minus infinity to the variable ``x``."""
    square, size = x.f * x.f, abs(x.f)
    density = exp(Jet(-square * _HALF)).f / iv.sqrt(_widened(2 * iv.pi))
    if abs(x.point) < _TAIL:
        # Abramowitz and Stegun 1964, equation 26.2.11: 1/2 + density (|x| + |x|**3 / 3 + |x|**5 / (3 5) + ...). At the
        # end each term is below half of the one before, so that all that follow are below the last one.
        term = total = size
        odd, ratio = 1, 1.0
        while odd < 2 * x.point**2 or ratio > 2.0**-iv.prec:
            odd += 2
            ratio *= x.point**2 / odd
            term = term * (square / _number(odd, iv.prec))
            total += term
        above = density * (total + iv.mpf([0, term.b]))
        value = _HALF + above if x.point > 0 else _HALF - above
    else:
        # Equation 26.2.12: the tail is between density / |x| (1 - 1 / x**2) and density / |x|.
        tail = density / size * iv.mpf([(_ONE - _ONE / square).a, 1])
        value = _ONE - tail if x.point > 0 else tail
    return x.compose(value, density, -(x.f * density * _HALF))


def sigmoid(t: Jet) -> Jet:
    """``1 / (1 + exp(-t))``: no digits of the value or a derivative cancel on either side."""
    return Jet.of(1) / (exp(-t) + 1)


_FORMS: dict[str, Callable[[Jet], Jet]] = {
    "none": lambda x: x * normal_cdf(x),
    "tanh": lambda x: x * sigmoid((x + x * x * x * "0.044715") * Jet(iv.sqrt(8 / _widened(+iv.pi)))),
    "sigmoid": lambda x: x * sigmoid(x * "1.702"),
}


def _softplus(x: Jet, beta: float = 1.0) -> Jet:
    t = x * beta
    return (log1p(exp(-t)) + t if t.point > 0 else log1p(exp(t))) / beta


def _mish(x: Jet) -> Jet:
    n = exp(x)
    q = n * (n + 2)  # tanh(log(1 + n)) = q / (q + 2)
    return x * (q / (q + 2) if x.point < 0 else Jet.of(-2) / (q + 2) + 1)


def _elu(x: Jet, alpha: Number = 1.0) -> Jet:
    return x if x.point > 0 else (exp(x) + -1) * alpha


def _leaky_relu(x: Jet, negative_slope: float = 0.01) -> Jet:
    return x if x.point > 0 else x * negative_slope


# At a kink they have the side that `lit_gelu.activations.functional.derivative` has there.
DEFINITIONS: dict[str, Callable[..., Jet]] = {
    "identity": lambda x: x,
    "relu": lambda x: _leaky_relu(x, 0.0),
    "relu6": lambda x: x if 0 < x.point < 6 else Jet.of(6.0 * (x.point > 0)),
    "relu2": lambda x: x * x if x.point > 0 else Jet.of(0),
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "selu": lambda x: _elu(x, _SELU_ALPHA) * _SELU_SCALE,
    "celu": lambda x, alpha=1.0: x if x.point > 0 else (exp(x / alpha) + -1) * alpha,
    "softplus": _softplus,
    "log_sigmoid": lambda x: -_softplus(-x),
    "sigmoid": sigmoid,
    "tanh": lambda x: sigmoid(x * -2) * -2 + 1,
    "hard_sigmoid": lambda x: (x + 3) / 6 if abs(x.point) < 3 else Jet.of(float(x.point > 0)),
    "gelu": lambda x, approximate="none": _FORMS[approximate](x),
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x, beta=1.0: x * sigmoid(x * beta),
    "hard_swish": lambda x: x * (x + 3) / 6 if abs(x.point) < 3 else x * float(x.point > 0),
    "mish": _mish,
}


def definition_of(spec: ActivationSpec) -> Callable[[Jet], Jet]:
    """Return the definition of an activation with given arguments."""
    arguments = {name: value for name, value in spec.arguments.items() if name not in _WITHOUT_EFFECT}
    definition = DEFINITIONS.get(spec.name)
    if definition is None or not arguments.keys() <= inspect.signature(definition).parameters.keys():
        raise ArgumentError(
            f"{spec} has no definition in intervals, which prove how values round. Accepted are, with the numbers in "
            f"their formulas: {', '.join(DEFINITIONS)}."
        )
    return functools.partial(definition, **arguments)
