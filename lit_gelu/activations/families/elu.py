"""ELU and its kin, SELU and CELU: ``alpha (exp(x) - 1)`` on the left.

At 0 the derivatives are those of the left piece; for the first that is torch's choice too.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families._package import INPLACE
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import ModuleForm, ReadAttributes
from lit_gelu.activations.numerics.arguments import (
    Derivatives,
    check_positive,
    elementwise,
    elementwise_derivative,
    quotient,
)
from lit_gelu.activations.numerics.piecewise import Piece, PiecewiseMoments, exponential
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxRecipes

# Klambauer et al. 2017: the fixed point of mean 0 and variance 1 is kept by these two, given there to more digits than
# float64 holds.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


@elementwise
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Exponential linear unit: ``x`` above 0, else ``alpha (exp(x) - 1)``.

    Source: Clevert, Unterthiner and Hochreiter 2015 (arXiv 1511.07289), equation 15.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        alpha: Minus the limit at ``-inf``.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> elu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-0.6321,  0.0000,  2.0000])
    """
    return torch.where(x > 0, x, alpha * torch.expm1(_left(x)))


@elementwise_derivative
def elu_derivative(x: Tensor, order: int = 1, alpha: float = 1.0) -> Tensor:
    """First or second derivative of `elu`: 1 or 0 above 0, else ``alpha exp(x)`` for both.

    ``f'`` jumps by ``1 - alpha`` at 0.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.
        alpha: Minus the limit of the function at ``-inf``.

    Returns:
        A tensor like ``x``; ``f'(0) = f''(0) = alpha``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> elu_derivative(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0.3679, 1.0000, 1.0000])
    """
    return torch.where(x > 0, 2.0 - order, _times_exp(alpha, _left(x)))


@elementwise
def selu(x: Tensor) -> Tensor:
    """Scaled exponential linear unit: ``scale * elu(x, alpha)`` with ``scale = 1.0507...`` and ``alpha = 1.6733...``.

    Source: Klambauer et al. 2017, "Self-Normalizing Neural Networks" (arXiv 1706.02515), equation 2.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> selu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-1.1113,  0.0000,  2.1014])
    """
    return torch.where(x > 0, SELU_SCALE * x, SELU_SCALE * SELU_ALPHA * torch.expm1(_left(x)))


@elementwise_derivative
def selu_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `selu`: ``scale`` or 0 above 0, else ``scale * alpha * exp(x)`` for both.

    ``f'`` jumps by ``scale (1 - alpha) = -0.7074`` at 0.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``; ``f'(0) = f''(0) = scale * alpha``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> selu_derivative(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0.6468, 1.7581, 1.0507])
    """
    return torch.where(x > 0, SELU_SCALE * (2.0 - order), _times_exp(SELU_SCALE * SELU_ALPHA, _left(x)))


@elementwise
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Continuously differentiable exponential linear unit: ``x`` above 0, else ``alpha (exp(x / alpha) - 1)``.

    Source: Barron 2017, "Continuously Differentiable Exponential Linear Units" (arXiv 1704.07483), equation 2.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        alpha: Minus the limit at ``-inf``; not 0.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``alpha`` not positive.

    Example:
        >>> celu(torch.tensor([-1.0, 0.0, 2.0]), alpha=2.0)
        tensor([-0.7869,  0.0000,  2.0000])
    """
    check_positive("celu", "alpha", alpha)
    return torch.where(x > 0, x, alpha * torch.expm1(_left(x) / alpha))


@elementwise_derivative
def celu_derivative(x: Tensor, order: int = 1, alpha: float = 1.0) -> Tensor:
    """First or second derivative of `celu`: 1 or 0 above 0, else ``exp(x / alpha)`` or ``exp(x / alpha) / alpha``.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.
        alpha: Minus the limit of the function at ``-inf``; not 0.

    Returns:
        A tensor like ``x``; ``f'(0) = 1`` and ``f''(0) = 1 / alpha``.

    Raises:
        ActivationArgumentError: If ``x`` is no floating tensor, ``order`` neither 1 nor 2, or ``alpha`` not positive.

    Example:
        >>> celu_derivative(torch.tensor([-1.0, 0.0, 2.0]), alpha=2.0)
        tensor([0.6065, 1.0000, 1.0000])
    """
    check_positive("celu_derivative", "alpha", alpha)
    left = _left(x) / alpha
    return torch.where(x > 0, 2.0 - order, torch.exp(left) if order == 1 else _times_exp(1.0 / alpha, left))


def _left(x: Tensor) -> Tensor:
    """Return ``x`` left of 0, else 0: the exponential of a large ``x`` would overflow, and 0 times it is NaN."""
    return torch.where(x > 0, 0.0, x)


def _times_exp(factor: float, u: Tensor) -> Tensor:
    """Return ``factor * exp(u)`` for negative ``u``; see ``numerics/gates.py`` for why the exponential is halved."""
    root = torch.exp(0.5 * u)
    return (factor * root) * root


def elu_joint(x: Tensor, alpha: float = 1.0, rate: float = 1.0, scale: float = 1.0) -> Derivatives:
    """ELU and its kin: ``scale x`` for x > 0, else ``scale alpha (exp(rate x) - 1)``; at 0 the left derivatives."""
    right = x > 0
    inner = (rate * x).clamp(max=0.0)
    value = torch.where(right, scale * x, (scale * alpha) * torch.expm1(inner))
    slope = (scale * alpha * rate) * torch.exp(inner)  # not 1 more than the other, which is 0 from -17 on
    first = torch.where(right, scale, slope)
    second = torch.where(right, 0.0, rate * slope)
    return Derivatives(value, first, second, quotient(value, x, first))


def celu_joint(x: Tensor, alpha: float = 1.0) -> Derivatives:
    """CELU."""
    return elu_joint(x, alpha, rate=1.0 / alpha)


def selu_joint(x: Tensor) -> Derivatives:
    """SELU."""
    return elu_joint(x, SELU_ALPHA, scale=SELU_SCALE)


def celu_pieces(alpha: float = 1.0) -> tuple[Piece, ...]:
    """CELU, for its moments."""
    return exponential(alpha, 1.0 / alpha)


def _elu_facts(alpha: float = 1.0, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        formula="x if x > 0 else alpha (exp(x) - 1)",
        reference="Clevert, Unterthiner and Hochreiter 2016, Exponential Linear Units (arXiv 1511.07289)",
        smoothness=1 if alpha == 1 else 0,
        asymptotes=(f"{-alpha}", "x"),
        kinks=() if alpha == 1 else ((0.0, 1.0 - alpha),),
    )


def _celu_facts(alpha: float = 1.0, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        formula="x if x > 0 else alpha (exp(x / alpha) - 1)",
        reference="Barron 2017, Continuously Differentiable Exponential Linear Units (arXiv 1704.07483)",
        smoothness=1,
        asymptotes=(f"{-alpha}", "x"),
    )


ENTRIES = (
    ActivationEntry(
        "elu",
        nn.ELU,
        function=elu,
        derivative=elu_derivative,
        joint=elu_joint,
        moments=PiecewiseMoments(exponential),
        facts=_elu_facts,
        modules=(ModuleForm(nn.ELU, ReadAttributes(("alpha", "inplace")), keeps_input=True),),
        functions=((F.elu, ()), (F.elu_, ())),
        # ELU, SELU and CELU's primitives subtract 1 from an exponential, so their relative error grows near 0 (the
        # absolute error stays below one unit in the last place of 1); so does that of onnxruntime's own kernels.
        onnx=OnnxRecipes(
            native="Elu(x, alpha=alpha)",
            primitives="Add(Relu(x), Mul(Sub(Exp(Min(x, 0.0)), 1.0), alpha))",
            accurate="t = Tanh(Mul(Min(x, 0.0), 0.5)); Add(Relu(x), Mul(Div(t, Sub(1.0, t)), alpha * 2.0))",
            operator=OnnxOperator("Elu", {"alpha": ("alpha", 1.0)}),
        ),
    ),
    ActivationEntry(
        "selu",
        nn.SELU,
        function=selu,
        derivative=selu_derivative,
        joint=selu_joint,
        moments=PiecewiseMoments(exponential(SELU_ALPHA, scale=SELU_SCALE)),
        facts=ActivationFacts(
            formula="1.0507 x if x > 0 else 1.0507 1.6733 (exp(x) - 1)",
            reference="Klambauer et al. 2017, Self-Normalizing Neural Networks (arXiv 1706.02515)",
            smoothness=0,
            asymptotes=(f"{-SELU_ALPHA * SELU_SCALE}", f"{SELU_SCALE} x"),
            kinks=((0.0, SELU_SCALE * (1.0 - SELU_ALPHA)),),
        ),
        modules=(ModuleForm(nn.SELU, INPLACE, keeps_input=True),),
        functions=((torch.selu, ()), (torch.selu_, ()), (F.selu, ()), (F.selu_, ())),
        onnx=OnnxRecipes(
            native="Selu(x, alpha=SELU_ALPHA, gamma=SELU_SCALE)",
            primitives="Mul(Add(Relu(x), Mul(Sub(Exp(Min(x, 0.0)), 1.0), SELU_ALPHA)), SELU_SCALE)",
            accurate="t = Tanh(Mul(Min(x, 0.0), 0.5)); "
            "Mul(Add(Relu(x), Mul(Div(t, Sub(1.0, t)), SELU_ALPHA * 2.0)), SELU_SCALE)",
            policy={"ort-cpu fp32 *": "native"},  # its primitives, one product more than ELU's, are no faster
            operator=OnnxOperator("Selu"),
        ),
    ),
    ActivationEntry(
        "celu",
        nn.CELU,
        function=celu,
        derivative=celu_derivative,
        joint=celu_joint,
        moments=PiecewiseMoments(celu_pieces),
        facts=_celu_facts,
        modules=(ModuleForm(nn.CELU, ReadAttributes(("alpha", "inplace")), keeps_input=True),),
        functions=((torch.celu, ()), (torch.celu_, ()), (F.celu, ()), (F.celu_, ())),
        onnx=OnnxRecipes(
            native="Celu(x, alpha=alpha)",
            primitives="Add(Relu(x), Mul(Sub(Exp(Div(Min(x, 0.0), alpha)), 1.0), alpha))",
            accurate="t = Tanh(Div(Min(x, 0.0), alpha * 2.0)); Add(Relu(x), Mul(Div(t, Sub(1.0, t)), alpha * 2.0))",
            operator=OnnxOperator("Celu", {"alpha": ("alpha", 1.0)}),
        ),
    ),
)
