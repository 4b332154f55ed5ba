"""Activations as other runtimes write them: rational approximations, tables, arithmetic of 16 bits, tricks with bits.

All take and return NumPy arrays. Formulas and constants are those of the sources that are named, not of the package.
"""

import math

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F
from scipy import special

NUMPY = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ROOT = math.sqrt(2 / math.pi)


def arrays_only(function):
    """Refuse tensors, as runtimes do that know none, and let numbers overflow as kernels do."""

    def port(x):
        assert isinstance(x, np.ndarray)
        with np.errstate(all="ignore"):
            return np.asarray(function(x))

    return port


def exact(x):
    return 0.5 * x * special.erfc(-x / math.sqrt(2))


def tanh_form(x):
    return 0.5 * x * (1 + np.tanh(ROOT * (x + 0.044715 * x**3)))


def quick(x):
    return x * special.expit(1.702 * x)


def silu(x):
    return x * special.expit(x)


def mish(x):
    return x * np.tanh(np.logaddexp(0, x))


FORMULAS = {
    "gelu": exact,
    "gelu(approximate='tanh')": tanh_form,
    "gelu(approximate='sigmoid')": quick,
    "silu": silu,
    "mish": mish,
    "tanh": np.tanh,
}


def in_float64(formula):
    """Round the formula's value in float64 once, to the dtype of the input."""
    return arrays_only(lambda x: formula(x.astype(np.float64)).astype(x.dtype))


def tanh_form_of(tanh):
    return arrays_only(lambda x: x * x.dtype.type(0.5) * (1 + tanh(x.dtype.type(ROOT) * (x + 0.044715 * x * x * x))))


def eigen_tanh(x):
    """Eigen's rational tanh of degrees 13 and 6 (Eigen/src/Core/MathFunctionsImpl.h), as TensorFlow's CPU kernels."""
    above = [-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08]
    above += [1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03]
    below = [1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03]
    bounded = np.clip(x, -7.90531110763549805, 7.90531110763549805).astype(np.float32)
    square = bounded * bounded
    value = bounded * np.polyval(np.float32(above), square) / np.polyval(np.float32(below), square)
    return np.where(np.abs(x) < 0.0004, x, value)


def hastings_erf(x):
    """Abramowitz and Stegun 7.1.26: an error of 1.5e-7."""
    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    factors = np.float32([1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0])
    return np.sign(x) * (1 - np.polyval(factors, t) * np.exp(-x * x))


def rough_exp(x):
    """Schraudolph (1999): the bits of a float as a straight line, off by 3 %."""
    bits = np.clip(x * np.float32(12102203.16) + np.float32(1064866805), 0, 2139095039)
    return bits.astype(np.int32).view(np.float32)


def integer_gelu(x):
    """I-BERT (arXiv 2101.01321, equation 8): a polynomial of second degree for erf."""
    q = x / math.sqrt(2)
    erf = np.sign(q) * (-0.2888 * (np.minimum(np.abs(q), 1.769) - 1.769) ** 2 + 1)
    return (0.5 * x * (1 + erf)).astype(x.dtype)


def hard_gelu(x):
    return (x * np.clip(1.702 * x / 6 + 0.5, 0, 1)).astype(x.dtype)


def table(formula, steps, end, place=0.5, tails=False):
    """Look up values in as many steps from -end to end; beyond, the outermost ones, or 0 and x as they are."""
    width = 2 * end / steps
    values = formula(-end + width * (np.arange(steps) + place))

    def port(x):
        y = values[np.clip(np.floor((x.astype(np.float64) + end) / width), 0, steps - 1).astype(int)]
        if tails:
            y = np.where(x >= end, x, np.where(x < -end, 0, y))
        return y.astype(x.dtype)

    return arrays_only(port)


def knots(formula, number, end):
    """Draw straight lines between knots from -end to end."""
    at = np.linspace(-end, end, number)
    return arrays_only(lambda x: np.interp(x.astype(np.float64), at, formula(at)).astype(x.dtype))


def flushed(function):
    """Set subnormal inputs and outputs to 0."""

    def port(x):
        tiny = torch.finfo(x.dtype).smallest_normal
        y = function(torch.where(x.abs() < tiny, 0, x))
        return torch.where(y.abs() < tiny, 0, y)

    return port


def quantized(formula, scale, zero_point, output_scale, output_zero_point):
    """Compute on int8 through real numbers, as a table of 256 entries holds it."""

    def port(q):
        values = formula((q.astype(np.float64) - zero_point) * scale)
        return np.clip(np.round(values / output_scale) + output_zero_point, -128, 127).astype(np.int8)

    return arrays_only(port)


# Rounded after every step, as native arithmetic of 16 bits does.
STEPWISE = {
    "gelu(approximate='tanh')": lambda x, n: (n(0.5) * x) * (n(1) + np.tanh(n(ROOT) * (x + n(0.044715) * (x * x * x)))),
    "gelu(approximate='sigmoid')": lambda x, n: x * (n(1) / (n(1) + np.exp(-(n(1.702) * x)))),
    "silu": lambda x, n: x / (n(1) + np.exp(-x)),
    "mish": lambda x, n: x * np.tanh(np.log(n(1) + np.exp(x))),
    "elu": lambda x, n: np.where(x > 0, x, np.exp(x) - n(1)),
    "hard_swish": lambda x, n: x * np.clip(x + n(3), n(0), n(6)) / n(6),
}

# Nothing registered is one of these.
UNREGISTERED = {
    "arctangent": torch.atan,
    "softsign": F.softsign,
    "sine": torch.sin,
    "serf": lambda x: x * torch.erf(F.softplus(x)),
    "tanhexp": lambda x: x * torch.tanh(torch.exp(x)),
    "lisht": lambda x: x * x.tanh(),
    "threshold": lambda x: F.threshold(x, 1.0, 0.0),
    "step": lambda x: (x > 0).to(x.dtype),
    "hard tanh": F.hardtanh,
    "gelu shifted to the left": lambda x: F.gelu(x + 0.05),
    "gelu of one side": lambda x: F.relu(F.gelu(x)),
    "1.05 gelu": lambda x: 1.05 * F.gelu(x),
    "minus silu": lambda x: -F.silu(x),
}
