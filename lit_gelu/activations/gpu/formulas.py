"""Each function and its slope in plain operations of torch, as `device` computes them: what torch.compile fuses.

Float32 inside, for 16-bit tensors; float32 and float64 keep torch's own kernels, which are more accurate.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lit_gelu.activations.gpu.coefficients import TAIL, TAIL_END

_HALF_LOG2E = 0.5 / math.log(2.0)
_LOG2_DENSITY = -0.5 * math.log2(2.0 * math.pi)
_TANH_1 = math.sqrt(8.0 / math.pi)  # 2 sqrt(2 / pi) (x + .044715 x^3): the argument of the logistic function
_TANH_3 = 0.044715 * _TANH_1
_LEAST = 1.4e-45  # float32's; 0 would let Triton 3.6 compare before it widens x, in two instructions more an element

_SMALLEST = 2.0**-63

Parameter = float | Tensor  # a number, or a tensor that x is compatible with
Formula = Callable[[Tensor, Parameter, Parameter], Tensor]


class FormulaPair(NamedTuple):
    """A function and its slope, of x and two parameters that it may leave alone."""

    value: Formula
    slope: Formula


def _root_of_tail(t: Tensor) -> Tensor:
    """Return the root of ``Phi(-t)`` for t from 0 to `TAIL_END`."""
    q = torch.full_like(t, 0.5 * TAIL[-1])
    for coefficient in reversed(TAIL[:-1]):
        q = q * t + 0.5 * coefficient
    return torch.exp2(q)


def _logistic(z: Tensor) -> Tensor:
    """Return ``1 / (1 + 2**z)``."""
    return torch.rsqrt(1.0 + torch.exp2(z)).square()


def _times_logistic(x: Tensor, half: Tensor) -> Tensor:
    """Return ``x / (1 + 4**half)``, for an x that is finite where half is above 85."""
    root = torch.exp2(-half.abs())
    factor = torch.where(half > 0, root, 1.0)
    return (x * factor) * (factor * torch.rsqrt(root * root + 1.0).square())


def _gelu(x: Tensor, _p0: Parameter, _p1: Parameter) -> Tensor:
    t = x.abs().clamp(max=TAIL_END)
    root = _root_of_tail(t)
    return x.clamp(min=_LEAST) - (t * root) * root


def _gelu_slope(x: Tensor, _p0: Parameter, _p1: Parameter) -> Tensor:
    t = x.abs().clamp(max=TAIL_END)
    root = _root_of_tail(t)
    h = root * root - t * torch.exp2(t * t * -_HALF_LOG2E + _LOG2_DENSITY)
    return torch.where(x > 0, 1.0 - h, h)


def _gelu_tanh(x: Tensor, _p0: Parameter, _p1: Parameter) -> Tensor:
    t = x.clamp(-12.0, 12.0)
    return _times_logistic(x.clamp(min=-12.0), t * (t * t * (-_HALF_LOG2E * _TANH_3) - _HALF_LOG2E * _TANH_1))


def _gelu_tanh_slope(x: Tensor, _p0: Parameter, _p1: Parameter) -> Tensor:
    t = x.clamp(-12.0, 12.0)
    square = t * t
    s = _logistic(t * (square * (-2.0 * _HALF_LOG2E * _TANH_3) - 2.0 * _HALF_LOG2E * _TANH_1))
    return s * (1.0 + t * (square * (3.0 * _TANH_3) + _TANH_1) * (1.0 - s))


def _swish(x: Tensor, beta: Parameter, _p1: Parameter) -> Tensor:
    half = (x * (-_HALF_LOG2E * beta)).clamp(-100.0, 100.0)
    return torch.where(half > 85.0, -0.0, _times_logistic(x, half))


def _swish_slope(x: Tensor, beta: Parameter, _p1: Parameter) -> Tensor:
    t = (x * beta).clamp(-126.0, 126.0)
    s = _logistic(t * (-2.0 * _HALF_LOG2E))
    return s * (1.0 + t * (1.0 - s))


def _mish(x: Tensor, _p0: Parameter, _p1: Parameter) -> Tensor:
    u = x.clamp(-126.0, 20.0)  # right of 20 the function is x
    root = torch.exp2(u * _HALF_LOG2E)
    e = root * root
    gate = root * ((e + 2.0) * torch.rsqrt(e * (e + 2.0) + 2.0).square())
    return (u * root) * gate + (x - 20.0).clamp(min=0.0)


def _mish_slope(x: Tensor, _p0: Parameter, _p1: Parameter) -> Tensor:
    c = x.clamp(-126.0, 20.0)
    e = torch.exp2(c * (2.0 * _HALF_LOG2E))
    n = e * (e + 2.0)
    r = torch.rsqrt(n + 2.0).square()
    return n * r + c * (4.0 * e * (1.0 + e) * r) * r


def _elu(x: Tensor, alpha: Parameter, _p1: Parameter) -> Tensor:
    m = x.clamp(max=0.0)
    near = m * (1.0 + m * (0.5 + m * (1.0 / 6.0 + m * (1.0 / 24.0 + m * (1.0 / 120.0)))))
    return torch.where(x > 0, x, alpha * torch.where(m > -0.25, near, torch.exp2(m * (2.0 * _HALF_LOG2E)) - 1.0))


def _elu_slope(x: Tensor, alpha: Parameter, _p1: Parameter) -> Tensor:
    return torch.where(x > 0, 1.0, alpha * torch.exp2(x.clamp(max=0.0) * (2.0 * _HALF_LOG2E)))


def _hard_swish(x: Tensor, _p0: Parameter, _p1: Parameter) -> Tensor:
    right = x.clamp(min=-3.0)
    return right * ((right + 3.0).clamp(max=6.0) * (1.0 / 6.0))


def _hard_swish_slope(x: Tensor, _p0: Parameter, _p1: Parameter) -> Tensor:
    inside = x.clamp(-3.0, 3.0) * (1.0 / 3.0) + 0.5
    return torch.where(x <= -3.0, 0.0, torch.where(x >= 3.0, 1.0, inside))


def _above_zero(sigma: Parameter) -> Parameter:
    """Return a deviation of at least the root of the smallest normal number."""
    return sigma.clamp(min=_SMALLEST) if isinstance(sigma, Tensor) else max(sigma, _SMALLEST)


def _gaussian_gelu(x: Tensor, mu: Parameter, sigma: Parameter) -> Tensor:
    u = (x - mu) / _above_zero(sigma)
    root = _root_of_tail(u.abs().clamp(max=TAIL_END))
    part = torch.where(u.abs() > TAIL_END, 0.0, (x * root) * root)
    return torch.where(u > 0, x - part, part)


def _gaussian_gelu_slopes(x: Tensor, mu: Parameter, sigma: Parameter) -> tuple[Tensor, Tensor, Tensor]:
    sigma = _above_zero(sigma)
    u = ((x - mu) / sigma).clamp(-TAIL_END, TAIL_END)
    p = _root_of_tail(u.abs()).square()
    moved = (u + mu / sigma) * torch.exp2(u * u * -_HALF_LOG2E + _LOG2_DENSITY)  # x phi(u) / sigma
    return torch.where(u > 0, 1.0 - p, p) + moved, -moved, -moved * u


def _gaussian_gelu_slope(x: Tensor, mu: Parameter, sigma: Parameter) -> Tensor:
    return _gaussian_gelu_slopes(x, mu, sigma)[0]


def _swish_slopes(x: Tensor, beta: Parameter, _p1: Parameter) -> tuple[Tensor, Tensor, Tensor]:
    t = (x * beta).clamp(-126.0, 126.0)
    s = _logistic(t * (-2.0 * _HALF_LOG2E))
    bend = s * (1.0 - s)
    finite = x.clamp(-1.0e18, 1.0e18)
    return s + t * bend, finite * (finite * bend), torch.zeros_like(s)


#: By the names of `device`.
FORMULAS = {
    "gelu": FormulaPair(_gelu, _gelu_slope),
    "gelu_tanh": FormulaPair(_gelu_tanh, _gelu_tanh_slope),
    "swish": FormulaPair(_swish, _swish_slope),
    "mish": FormulaPair(_mish, _mish_slope),
    "elu": FormulaPair(_elu, _elu_slope),
    "hard_swish": FormulaPair(_hard_swish, _hard_swish_slope),
    "gaussian_gelu": FormulaPair(_gaussian_gelu, _gaussian_gelu_slope),
}

#: The slopes by x and by both parameters, of functions whose parameters are learned.
SLOPES: dict[str, Callable[[Tensor, Parameter, Parameter], tuple[Tensor, Tensor, Tensor]]] = {
    "gaussian_gelu": _gaussian_gelu_slopes,
    "swish": _swish_slopes,
}


def value(name: str, x: Tensor, p0: float = 0.0, p1: float = 0.0) -> Tensor:
    """Return the function of this name in x's dtype."""
    return FORMULAS[name].value(x.float(), p0, p1).to(x.dtype)


def slope(name: str, x: Tensor, p0: float = 0.0, p1: float = 0.0) -> Tensor:
    """Return its slope in float32."""
    return FORMULAS[name].slope(x.float(), p0, p1)
