"""ELU and its kin, SELU and CELU: ``alpha (exp(x) - 1)`` on the left.

At 0 the derivatives are those of the left piece; for the first that is torch's choice too.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts, ModuleForm
from lit_gelu.activations.numerics.arguments import Derivatives, check_positive, elementwise, quotient
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxRecipes

# Klambauer et al. 2017: the fixed point of mean 0 and variance 1 is kept by these two, given there to more digits than
# float64 holds.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


@elementwise
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return the exponential linear unit: ``x`` above 0, else ``alpha (exp(x) - 1)``.

    Source: Clevert, Unterthiner and Hochreiter 2015 (arXiv 1511.07289), equation 15.

    Args:
        x: Any shape, floating.
        alpha: Minus the limit at ``-inf``.

    Example:
        >>> elu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-0.6321,  0.0000,  2.0000])
    """
    return elu_joint(x, alpha).value


def elu_joint(x: Tensor, alpha: float = 1.0, length: float = 1.0, scale: float = 1.0) -> Derivatives:
    """ELU and its kin: ``scale x`` above 0, else ``scale alpha (exp(x / length) - 1)``; at 0 the left derivatives."""
    right = x > 0
    inner = torch.where(right, 0.0, x) / length  # the exponential of a large x would overflow, and 0 times it is NaN
    value = torch.where(right, scale * x, scale * alpha * torch.expm1(inner))
    root = torch.exp(0.5 * inner)  # see ``numerics/gates.py`` for why the exponential is halved
    rate = scale * alpha / length
    first = torch.where(right, scale, (rate * root) * root)
    second = torch.where(right, 0.0, (rate / length * root) * root)
    return Derivatives(value, first, second, quotient(value, x, first))


@elementwise
def selu(x: Tensor) -> Tensor:
    """Return the scaled exponential linear unit: ``scale * elu(x, alpha)``, scale 1.0507..., alpha 1.6733....

    Source: Klambauer et al. 2017, "Self-Normalizing Neural Networks" (arXiv 1706.02515), equation 2.

    Example:
        >>> selu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-1.1113,  0.0000,  2.1014])
    """
    return selu_joint(x).value


def selu_joint(x: Tensor) -> Derivatives:
    """SELU."""
    return elu_joint(x, SELU_ALPHA, scale=SELU_SCALE)


@elementwise
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return the continuously differentiable ELU: ``x`` above 0, else ``alpha (exp(x / alpha) - 1)``.

    Source: Barron 2017, "Continuously Differentiable Exponential Linear Units" (arXiv 1704.07483), equation 2.

    Args:
        x: Any shape, floating.
        alpha: Minus the limit at ``-inf``; not 0.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor or ``alpha`` not positive.

    Example:
        >>> celu(torch.tensor([-1.0, 0.0, 2.0]), alpha=2.0)
        tensor([-0.7869,  0.0000,  2.0000])
    """
    return celu_joint(x, alpha).value


def celu_joint(x: Tensor, alpha: float = 1.0) -> Derivatives:
    """CELU."""
    check_positive("celu", "alpha", alpha)
    return elu_joint(x, alpha, length=alpha)


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
        joint=elu_joint,
        facts=_elu_facts,
        modules=(ModuleForm(nn.ELU, keeps_input=True),),
        functions=(F.elu, F.elu_),
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
        joint=selu_joint,
        facts=ActivationFacts(
            formula="1.0507 x if x > 0 else 1.0507 1.6733 (exp(x) - 1)",
            reference="Klambauer et al. 2017, Self-Normalizing Neural Networks (arXiv 1706.02515)",
            smoothness=0,
            asymptotes=(f"{-SELU_ALPHA * SELU_SCALE}", f"{SELU_SCALE} x"),
            kinks=((0.0, SELU_SCALE * (1.0 - SELU_ALPHA)),),
        ),
        modules=(ModuleForm(nn.SELU, keeps_input=True),),
        functions=(torch.selu, torch.selu_, F.selu, F.selu_),
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
        joint=celu_joint,
        facts=_celu_facts,
        modules=(ModuleForm(nn.CELU, keeps_input=True),),
        functions=(torch.celu, torch.celu_, F.celu, F.celu_),
        onnx=OnnxRecipes(
            native="Celu(x, alpha=alpha)",
            primitives="Add(Relu(x), Mul(Sub(Exp(Div(Min(x, 0.0), alpha)), 1.0), alpha))",
            accurate="t = Tanh(Div(Min(x, 0.0), alpha * 2.0)); Add(Relu(x), Mul(Div(t, Sub(1.0, t)), alpha * 2.0))",
            operator=OnnxOperator("Celu", {"alpha": ("alpha", 1.0)}),
        ),
    ),
)
