"""Functions that fall and rise, by kernels that keep their output and a bit for each element."""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from lit_gelu.activations.gpu import launch
from lit_gelu.activations.gpu.coefficients import LOGARITHM


class OutputFit(NamedTuple):
    """The slope from the output, by a polynomial on each side of the lowest point."""

    # Right of it in the root of the height above the lowest value; left of it the output times one in the root of the
    # logarithm of how much deeper the lowest value is.
    lowest: float  # the value there
    end: float  # the root of the height from which on the slope is 1
    least: float  # the root of the height of half a spacing of bfloat16, which the lowest outputs have on the average
    right: tuple[float, ...]  # coefficients from the constant one on: of degree 7, within 7e-4
    left: tuple[float, ...]  # of degree 5, within 5e-5


#: By the names of `device`; Swish with slope 1. Swish with another slope is a multiple of it, squeezed.
FITS = {
    "gelu": OutputFit(
        -0.16997120747990366,
        1.94320272,
        0.0125,
        (-0.000643947, 0.931286759, 1.30468019, -2.151814329, 2.308346062, -2.190749081, 1.06784279, -0.187840181),
        (0.000447811, 2.232851262, -1.049501611, 0.665305909, -0.206944055, 0.023132515),
    ),
    "gelu_tanh": OutputFit(
        -0.17004075057125403,
        1.929559312,
        0.0125,
        (7.4695e-05, 0.906930221, 1.454569858, -2.522668409, 2.756417785, -2.471576539, 1.155709728, -0.198715035),
        (0.000435935, 2.229682084, -1.048399947, 0.657236149, -0.181567316, 0.019129797),
    ),
    "swish": OutputFit(
        -0.27846454276107385,
        2.909021202,
        0.0,
        (-0.00080476, 0.695027335, 0.649434529, -0.01786583, -0.840242085, 0.572802287, -0.146697399, 0.013426224),
        (0.000209217, 1.240283617, -0.8131069, 0.329233033, -0.079543263, 0.008151791),
    ),
    "mish": OutputFit(
        -0.30884341301725043,
        2.186324668,
        0.0185,
        (-0.001544422, 0.806977328, 0.410196054, 1.205975941, -2.686098548, 1.638441754, -0.395149388, 0.030809029),
        (0.000174628, 1.306044651, -0.951256415, 0.429080715, -0.109054113, 0.011111154),
    ),
}
_FINER = {torch.bfloat16: 1.0, torch.float16: 2.0**-1.5}  # the root of a spacing beside bfloat16's


def valley_forward(x: Tensor, name: str, beta: float, lowest: float) -> tuple[Tensor, Tensor]:
    """Return the function of a tensor, and for eight elements a byte that says which are right of ``lowest``."""
    x = launch.dense(x)
    y = torch.empty_like(x)
    bits = torch.empty(math.ceil(x.numel() / 8), dtype=torch.uint8, device=x.device)
    launch.flat("valley_forward", x, x, y, bits, x.numel(), beta, lowest, ACT=name)
    return y, bits


def valley_backward(gradient: Tensor, y: Tensor, bits: Tensor, name: str, beta: float, factor: float) -> Tensor:
    """Return a gradient times the slope of ``factor`` times the function, from its output; all lie alike in memory."""
    by_x = torch.empty_like(y)
    squeezed = beta if name == "swish" else 1.0  # swish(x) = silu(beta x) / beta
    numbers = (squeezed / factor, factor, *_numbers(name, y.dtype))
    launch.flat("valley_backward", y, gradient, y, bits, by_x, y.numel(), *numbers)
    return by_x


@functools.cache
def _numbers(name: str, dtype: torch.dtype) -> tuple[float, ...]:
    """Return what the kernel is told of a function: roots are taken of heights, and logarithms to the base 2."""
    fit = FITS[name]
    least = max(fit.least * _FINER[dtype], 1e-6)
    left = (c * math.log(2.0) ** (0.5 * power) for power, c in enumerate(fit.left))
    return (fit.lowest, _logarithm(-fit.lowest), least**2, fit.end**2, *fit.right, *left)


def _logarithm(size: float) -> float:
    """Return ``log2(size) + 127`` as the kernel has it, so that the errors of both cancel near the lowest value."""
    half, exponent = math.frexp(size)
    return exponent + 126.0 + sum(c * (2.0 * half) ** power for power, c in enumerate(LOGARITHM))
