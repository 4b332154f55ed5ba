"""``f``, ``f'``, ``f''`` and the gate of an activation from one evaluation of its exponential.

The functions of `lit_gelu.activations.functional` are exact to the last digit, and each derivative is computed by
itself. A mean over a sample needs six digits, so here the three share their terms: an error function or a sigmoid is
evaluated once. In float32 they are within 2e-6 of ``max(1, |x|)`` (f) and of 1 (f', f'', gate) of the exact values.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.families._package import REGISTERED_BY
from lit_gelu.activations.families.elu import SELU_ALPHA, SELU_SCALE
from lit_gelu.activations.families.gelu import SIGMOID_SLOPE, TANH_CUBIC, TANH_SLOPE
from lit_gelu.activations.functional import derivative

SQRT_HALF = math.sqrt(0.5)
INVERSE_SQRT_TWO_PI = 1.0 / math.sqrt(2.0 * math.pi)

# Beyond these every f' and f'' below is constant to float32's last digit; squares and cubes of them are finite.
NORMAL_LIMIT = 30.0
LOGISTIC_LIMIT = 60.0


class Derivatives(NamedTuple):
    """What an activation does at each element of its input.

    Args:
        value: ``f(x)``.
        first: ``f'(x)``; at a kink that of one side.
        second: ``f''(x)``, without what sits in kinks.
        gate: ``f(x) / x``, with ``f'(0)`` at ``x = 0``; ``None`` where f(0) is not 0, so that it has no mean.
    """

    value: Tensor
    first: Tensor
    second: Tensor
    gate: Tensor | None


Joint = Callable[..., Derivatives]


def joint_derivatives(activation: nn.Module, registry: ActivationRegistry) -> Callable[[Tensor], Derivatives]:
    """Return the function that evaluates an activation and its derivatives together.

    Args:
        activation: The activation; its parameters are used as they are when the result is called.
        registry: Where it is looked up.

    Returns:
        A function of a float32 or float64 tensor. For activations without a joint form it evaluates the registered
        closed forms one by one, or differentiates; then the gate is NaN throughout where f(0) is not 0.

    Example:
        >>> from lit_gelu.activations import registry
        >>> found = joint_derivatives(nn.GELU(), registry)(torch.tensor([0.0, 1.0], dtype=torch.float64))
        >>> [round(value, 8) for value in found.first.tolist()], [round(value, 8) for value in found.second.tolist()]
        ([0.5, 1.08331547], [0.79788456, 0.24197072])
    """
    entry = registry.entry_of(activation)
    has_state = any(True for _ in activation.parameters()) or any(True for _ in activation.buffers())
    if entry is not None and entry.registered_by == REGISTERED_BY and entry.name in JOINT and not has_state:
        form = entry.form_of(activation)
        if form is not None:
            arguments = form.live_arguments(activation)
            joint = JOINT[entry.name]
            return lambda x: joint(x, **arguments)
    return lambda x: _one_by_one(activation, x, registry)


def _one_by_one(activation: nn.Module, x: Tensor, registry: ActivationRegistry) -> Derivatives:
    value, first, second = (derivative(activation, x, order, registry=registry).detach() for order in (0, 1, 2))
    at_zero = derivative(activation, torch.zeros_like(x[:1] if x.dim() else x), 0, registry=registry).detach()
    gate = _quotient(value, x, first) + torch.where((at_zero == 0).all(), 0.0, torch.nan)
    return Derivatives(value, first, second, gate)


def _quotient(value: Tensor, x: Tensor, at_zero: Tensor | float) -> Tensor:
    return torch.where(x == 0, at_zero, value / x)


def _gelu(x: Tensor, approximate: str = "none") -> Derivatives:
    if approximate == "sigmoid":
        return _swish(x, SIGMOID_SLOPE)
    if approximate == "tanh":
        return _tanh_gelu(x)
    return _gaussian_gelu(x)


def _gaussian_gelu(x: Tensor, mu: float = 0.0, sigma: float = 1.0) -> Derivatives:
    """``x Phi(u)``, ``u = (x - mu) / sigma``: f' = Phi + x phi / sigma, f'' = phi / sigma (2 - x u / sigma)."""
    standard = (mu, sigma) == (0.0, 1.0)
    u = (x if standard else (x - mu) / sigma).clamp(-NORMAL_LIMIT, NORMAL_LIMIT)
    gate = torch.erfc(u * -SQRT_HALF).mul_(0.5)
    square = u * u
    density = torch.exp(square * -0.5).mul_(INVERSE_SQRT_TWO_PI / sigma)
    weighted = (u if standard else mu + sigma * u) * density
    if standard:
        return Derivatives(x * gate, gate + weighted, density.mul_(2 - square), gate)
    return Derivatives(x * gate, gate + weighted, 2 * density - weighted * (u / sigma), gate)


def _tanh_gelu(x: Tensor) -> Derivatives:
    """``x s(u)``, ``u = 2 sqrt(2 / pi) (x + 0.044715 x^3)``."""
    bounded = x.clamp(-NORMAL_LIMIT, NORMAL_LIMIT)
    square = bounded * bounded
    u = bounded * (TANH_SLOPE + TANH_CUBIC * square)
    slope = TANH_SLOPE + (3 * TANH_CUBIC) * square
    gate, closed = torch.sigmoid(u), torch.sigmoid(-u)
    slanted = bounded * slope
    first = gate * (1 + slanted * closed)
    bend = 2 * slope + (6 * TANH_CUBIC) * square + slanted * slope * (closed - gate)
    return Derivatives(x * gate, first, gate * closed * bend, gate)


def _swish(x: Tensor, beta: float = 1.0) -> Derivatives:
    """``x s(u)``, ``u = beta x``: f' = s(u) (1 + u s(-u)), f'' = beta s(u) s(-u) (2 + u (s(-u) - s(u)))."""
    u = (beta * x).clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    gate, closed = torch.sigmoid(u), torch.sigmoid(-u)
    return Derivatives(x * gate, gate * (1 + u * closed), (beta * gate * closed) * (2 + u * (closed - gate)), gate)


def _mish(x: Tensor) -> Derivatives:
    """``x w``, ``w = tanh(softplus(x))``: f' = w + x s(x) (1 - w^2), f'' = (1 - w^2) s [2 + x (s(-x) - 2 w s)]."""
    bounded = x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    e = torch.exp(-bounded.abs())
    right = bounded >= 0
    square = e * e
    doubled = 2 * e
    below = torch.where(right, 1 + doubled + 2 * square, square + doubled + 2)
    gate = torch.where(right, 1 + doubled, square + doubled) / below
    rest = 4 * torch.where(right, square, 1.0) * ((1 + e) / below).square()  # 1 - w^2
    larger = 1 / (1 + e)
    logistic, complement = torch.where(right, larger, e * larger), torch.where(right, e * larger, larger)
    first = gate + bounded * logistic * rest
    return Derivatives(x * gate, first, rest * logistic * (2 + bounded * (complement - 2 * gate * logistic)), gate)


def _elu(x: Tensor, alpha: float = 1.0) -> Derivatives:
    return _exponential(x, alpha, 1.0, 1.0)


def _celu(x: Tensor, alpha: float = 1.0) -> Derivatives:
    return _exponential(x, alpha, 1.0 / alpha, 1.0)


def _selu(x: Tensor) -> Derivatives:
    return _exponential(x, SELU_ALPHA, 1.0, SELU_SCALE)


def _exponential(x: Tensor, alpha: float, rate: float, scale: float) -> Derivatives:
    """``scale x`` for x > 0, else ``scale alpha (exp(rate x) - 1)``; at 0 the left derivatives."""
    right = x > 0
    inner = (rate * x).clamp(max=0.0)
    grown = torch.expm1(inner)
    value = torch.where(right, scale * x, (scale * alpha) * grown)
    slope = (scale * alpha * rate) * (grown + 1)
    first = torch.where(right, scale, slope)
    second = torch.where(right, 0.0, rate * slope)
    return Derivatives(value, first, second, _quotient(value, x, first))


def _identity(x: Tensor) -> Derivatives:
    one = torch.ones_like(x)
    return Derivatives(x, one, torch.zeros_like(x), one)


def _relu(x: Tensor) -> Derivatives:
    first = (x > 0).to(x.dtype)
    return Derivatives(x * first, first, torch.zeros_like(x), first)


def _leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Derivatives:
    first = torch.where(x > 0, torch.ones_like(x), negative_slope)
    return Derivatives(x * first, first, torch.zeros_like(x), first)


def _relu6(x: Tensor) -> Derivatives:
    first = ((x > 0) & (x < 6)).to(x.dtype)
    value = x.clamp(0.0, 6.0)
    return Derivatives(value, first, torch.zeros_like(x), _quotient(value, x, 0.0))


def _relu2(x: Tensor) -> Derivatives:
    right = x.clamp(min=0.0)
    return Derivatives(right * right, 2 * right, 2 * (x > 0).to(x.dtype), right)


def _hard_swish(x: Tensor) -> Derivatives:
    """``x clamp(x + 3, 0, 6) / 6``; at the kinks the outer derivatives."""
    gate = (x / 6 + 0.5).clamp(0.0, 1.0)
    inside = ((x > -3) & (x < 3)).to(x.dtype)
    bounded = x.clamp(-3.0, 3.0)
    return Derivatives(x * gate, gate + inside * bounded / 6, inside / 3, gate)


def _hard_sigmoid(x: Tensor) -> Derivatives:
    inside = ((x > -3) & (x < 3)).to(x.dtype)
    return Derivatives((x / 6 + 0.5).clamp(0.0, 1.0), inside / 6, torch.zeros_like(x), None)


def _softplus(x: Tensor, beta: float = 1.0) -> Derivatives:
    u = beta * x
    value = (u.clamp(min=0.0) + torch.log1p(torch.exp(-u.abs()))) / beta
    first = torch.sigmoid(u)
    return Derivatives(value, first, beta * first * torch.sigmoid(-u), None)


def _sigmoid(x: Tensor) -> Derivatives:
    value, complement = torch.sigmoid(x), torch.sigmoid(-x)
    first = value * complement
    return Derivatives(value, first, first * (complement - value), None)


def _tanh(x: Tensor) -> Derivatives:
    value = torch.tanh(x)
    first = 4 * torch.sigmoid(2 * x) * torch.sigmoid(-2 * x)  # 1 - tanh^2 without the cancellation of the tails
    return Derivatives(value, first, -2 * value * first, _quotient(value, x, first))


JOINT: Mapping[str, Joint] = {
    "celu": _celu,
    "elu": _elu,
    "gaussian_gelu": _gaussian_gelu,
    "gelu": _gelu,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "identity": _identity,
    "leaky_relu": _leaky_relu,
    "mish": _mish,
    "relu": _relu,
    "relu2": _relu2,
    "relu6": _relu6,
    "selu": _selu,
    "sigmoid": _sigmoid,
    "silu": _swish,
    "softplus": _softplus,
    "swish": _swish,
    "tanh": _tanh,
}
"""The joint forms, by canonical name; called with the activation's arguments, which are numbers."""
