"""Mish."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts, ModuleForm
from lit_gelu.activations.numerics.arguments import (
    LOGISTIC_END,
    Derivatives,
    elementwise,
    elementwise_derivative,
    gated,
    largest,
)
from lit_gelu.activations.numerics.gates import LOGISTIC_LIMIT, decay, sum_error
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxRecipes, OnnxSpelling


@elementwise
def mish(x: Tensor) -> Tensor:
    """Return Mish: ``f(x) = x tanh(log(1 + exp(x)))``.

    Computed from ``e = exp(-|x|)``: ``tanh(softplus(x))`` is ``(1 + 2 e) / (1 + 2 e + 2 e**2)`` right of 0 and
    ``e (e + 2) / (e (e + 2) + 2)`` left of it.

    Source: Misra 2019, "Mish: A Self Regularized Non-Monotonic Activation Function" (arXiv 1908.08681), equation 1.

    Example:
        >>> mish(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.3034,  0.0000,  0.8651])
    """
    u = x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    finite = x.clamp(-largest(x), largest(x))
    return torch.where(x > LOGISTIC_LIMIT, x, _times_gate(finite, u))


@elementwise_derivative
def mish_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `mish`."""
    u = x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    e, inner, outer = decay(u)
    denominator = _denominator(e, u)
    if order == 2:  # a cubic in e = exp(-|u|), read from one end on each side, over den**3
        c0, c1, c2, c3 = 2.0 * (2.0 + u), 2.0 * (4.0 + u), 3.0 * (2.0 - u), 2.0 * (1.0 - u)
        constant = torch.where(u < 0, c0, c3)
        rest = e * torch.where(u < 0, c1 + e * (c2 + e * c3), c2 + e * (c1 + e * c0))
        # den**3 triples the rounding of den, which is put back here.
        error = torch.where(u < 0, sum_error(2.0, e * (e + 2.0)), sum_error(1.0, 2.0 * (e + e * e)))
        cubic = constant + (rest - 3.0 * error * (constant + rest) / denominator)
        scaled = torch.where(u < 0, inner, e) * (4.0 * cubic) / (denominator * denominator * denominator)
        return scaled * torch.where(u < 0, outer, e)
    # Left of 0 it is e (4 (1 + u) + e (6 + 4 u + e (4 + e))) / den**2: cancelled before rounding.
    numerator = 4.0 * (1.0 + u) + e * (6.0 + 4.0 * u + e * (4.0 + e))
    square = denominator**2
    right = _times_gate(1.0, u) + (u * e * (4.0 * (1.0 + e)) / square) * e
    return torch.where(u < 0, (inner * numerator / square) * outer, right)


def _denominator(e: Tensor, u: Tensor) -> Tensor:
    """Return the common denominator of the gate and its slope, for ``e = exp(-|u|)``."""
    return torch.where(u < 0, e * (e + 2.0) + 2.0, 1.0 + 2.0 * (e + e * e))


def _times_gate(factor: Tensor | float, u: Tensor) -> Tensor:
    """Return ``factor * tanh(softplus(u))``."""
    e, inner, outer = decay(u)
    fraction = torch.where(u < 0, e + 2.0, 1.0 + 2.0 * e) / _denominator(e, u)
    return (factor * torch.where(u < 0, inner, 1.0) * fraction) * torch.where(u < 0, outer, 1.0)


def mish_joint(x: Tensor) -> Derivatives:
    """``x w``, ``w = tanh(softplus(x))``: f' = w + x s(x) (1 - w^2), f'' = (1 - w^2) s [2 + x (s(-x) - 2 w s)]."""
    bounded = x.clamp(-LOGISTIC_END, LOGISTIC_END)
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
    value = gated(x, gate, bounded <= -LOGISTIC_END)
    return Derivatives(value, first, rest * logistic * (2 + bounded * (complement - 2 * gate * logistic)), gate)


class Composed(NamedTuple):
    """What takes the place of functions of torch whose double backward is wrong."""

    node: str  # how the names of their nodes in autograd's graph begin
    # By each function of torch one of the same arguments, composed of others.
    functions: Mapping[Callable[..., Any], Callable[..., Any]]
    note: str  # what to tell a user of it


def _composed(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002  # torch's name: it may come as keyword
    """``x tanh(softplus(x))`` from these three: derivatives of every order are finite in both tails."""
    if inplace:
        x = input.clone()
        return input.copy_(x * torch.tanh(F.softplus(x)))
    return input * torch.tanh(F.softplus(input))


# The double backward of torch's mish divides one overflowing exponential by another: it is NaN from x = 89 on in
# float32 and bfloat16 (12 in float16, 720 in float64).
COMPOSED = Composed(
    "MishBackward",
    {F.mish: _composed, torch._C._nn.mish: _composed, torch._C._nn.mish_: partial(_composed, inplace=True)},
    "torch's mish was computed as x tanh(softplus(x)), since its double backward is NaN for large x",
)


ENTRIES = (
    ActivationEntry(
        "mish",
        nn.Mish,
        function=mish,
        derivative=mish_derivative,
        joint=mish_joint,
        facts=ActivationFacts(
            "x tanh(log(1 + exp(x)))",
            "Misra 2019, Mish: A Self Regularized Non-Monotonic Activation Function (arXiv 1908.08681)",
            smoothness=float("inf"),
            asymptotes=("0", "x"),
        ),
        modules=(ModuleForm(nn.Mish, keeps_input=True),),
        functions=(F.mish,),
        # Mish's primitives are x n / (n + 2) with n = e (e + 2), e = exp(min(x, 20)): the same function, tanh(log(1 +
        # e^x)) written as a quotient, without a cancelling logarithm. Above 20 the quotient is 1 to float32's last
        # bit.
        onnx=OnnxRecipes(
            native="Mish(x)",
            primitives="e = Exp(Min(x, 20.0)); n = Mul(e, Add(e, 2.0)); Mul(x, Div(n, Add(n, 2.0)))",
            notes={"ort-cuda fast": "largest error 3.7e-3 (fp16), 2.1e-2 (bf16); 0 below -7.6, -5.56"},
            spellings=(OnnxSpelling("Mul(x, Tanh(Softplus(x)))"),),
            operator=OnnxOperator("Mish"),
        ),
    ),
)
