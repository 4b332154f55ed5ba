"""What is quadratic between kinks: squared ReLU, hard Swish, hard Mish."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts, ModuleForm
from lit_gelu.activations.numerics.arguments import Derivatives, elementwise
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxRecipes, OnnxSpelling

BOUND = 3.0  # the gate (x + 3) / 6 of hard Swish is 0 at -3 and 1 at 3


@elementwise
def relu2(x: Tensor) -> Tensor:
    """Return the squared rectified linear unit: ``f(x) = max(x, 0)**2``.

    Source: So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling" (arXiv 2109.08668).

    Example:
        >>> relu2(torch.tensor([-1.0, 0.5, 3.0]))
        tensor([0.0000, 0.2500, 9.0000])
    """
    return relu2_joint(x).value


def relu2_joint(x: Tensor) -> Derivatives:
    """``max(x, 0)**2``, ``2 max(x, 0)``, and 2 above 0, else 0."""
    right = torch.relu(x)
    return Derivatives(right * right, 2.0 * right, 2.0 * (x > 0).to(x.dtype), right)


class SquaredReLU(nn.Module):
    """``f(x) = max(x, 0)^2``, elementwise, any shape and floating dtype.

    Example:
        >>> SquaredReLU()(torch.tensor([-1.0, 0.5, 3.0]))
        tensor([0.0000, 0.2500, 9.0000])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to a floating tensor of any shape, elementwise."""
        return F.relu(x).square()


@elementwise
def hard_swish(x: Tensor) -> Tensor:
    """Return the piecewise quadratic form of SiLU: ``f(x) = x min(max(x + 3, 0), 6) / 6``.

    Source: Howard et al. 2019, "Searching for MobileNetV3" (arXiv 1905.02244), section 5.2.

    Example:
        >>> hard_swish(torch.tensor([-4.0, -1.5, 0.0, 3.0]))
        tensor([ 0.0000, -0.3750,  0.0000,  3.0000])
    """
    return hard_swish_joint(x).value


def hard_swish_joint(x: Tensor) -> Derivatives:
    """Between -3 and 3 ``x (x + 3) / 6``, ``(2 x + 3) / 6`` and ``1 / 3``; at the kinks the outer derivatives."""
    inside, low, high = x.clamp(-BOUND, BOUND), x <= -BOUND, x >= BOUND
    gate = (inside + BOUND) / (2.0 * BOUND)
    value = torch.where(high, x, torch.where(low, 0.0, inside * (inside + BOUND) / (2.0 * BOUND)))
    first = torch.where(high, 1.0, torch.where(low, 0.0, (2.0 * inside + BOUND) / (2.0 * BOUND)))
    return Derivatives(value, first, (~low & ~high).to(x.dtype) / BOUND, gate)


@elementwise
def hard_mish(x: Tensor) -> Tensor:
    """Return the piecewise quadratic form of Mish: ``f(x) = x min(max(x + 2, 0), 2) / 2``.

    Source: Misra 2020, notes on "H-Mish" (github.com/digantamisra98/H-Mish), as in timm's ``hard_mish``.

    Example:
        >>> hard_mish(torch.tensor([-3.0, -1.0, 0.0, 1.0]))
        tensor([ 0.0000, -0.5000,  0.0000,  1.0000])
    """
    return hard_mish_joint(x).value


def hard_mish_joint(x: Tensor) -> Derivatives:
    """Between -2 and 0 ``x (x / 2 + 1)``, ``x + 1`` and 1; at both joints the derivatives of the outer piece."""
    inside, low, high = x.clamp(-2.0, 0.0), x <= -2.0, x >= 0.0
    gate = 0.5 * inside + 1.0
    value = torch.where(high, x, torch.where(low, 0.0, inside * gate))
    first = torch.where(high, 1.0, torch.where(low, 0.0, inside + 1.0))
    return Derivatives(value, first, (~low & ~high).to(x.dtype), gate)


class HardMish(nn.Module):
    """``f(x) = x min(max(x + 2, 0), 2) / 2``, elementwise, any shape and floating dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise."""
        return 0.5 * x * (x + 2.0).clamp(0.0, 2.0)


_HARD_SWISH = "Mul(x, Clip(Add(Mul(x, ONE_SIXTH), 0.5), 0.0, 1.0))"

ENTRIES = (
    ActivationEntry(
        "relu2",
        SquaredReLU,
        function=relu2,
        joint=relu2_joint,
        facts=ActivationFacts(
            formula="max(x, 0)^2",
            reference="So et al. 2021, Primer (arXiv 2109.08668)",
            smoothness=1,
            asymptotes=("0", "x^2"),
        ),
        aliases=("squared_relu", "relu_squared"),
        onnx=OnnxRecipes(native="r = Relu(x); Mul(r, r)", policy={"* * *": "native"}),  # rounds once
    ),
    ActivationEntry(
        "hard_swish",
        nn.Hardswish,
        function=hard_swish,
        joint=hard_swish_joint,
        facts=ActivationFacts(
            formula="x min(max(x + 3, 0), 6) / 6",
            reference="Howard et al. 2019, Searching for MobileNetV3 (arXiv 1905.02244)",
            smoothness=0,
            asymptotes=("0", "x"),
            kinks=((-3.0, -0.5), (3.0, -0.5)),
        ),
        aliases=("hardswish", "hard_silu"),
        modules=(ModuleForm(nn.Hardswish, keeps_input=True),),
        functions=(F.hardswish,),
        onnx=OnnxRecipes(
            native="HardSwish(x)",
            primitives=_HARD_SWISH,
            spellings=(OnnxSpelling(_HARD_SWISH),),
            operator=OnnxOperator("HardSwish"),
        ),
    ),
    ActivationEntry(
        "hard_mish",
        HardMish,
        function=hard_mish,
        joint=hard_mish_joint,
        facts=ActivationFacts(
            formula="x min(max(x + 2, 0), 2) / 2",
            reference="Misra 2020, H-Mish (github.com/digantamisra98/H-Mish)",
            smoothness=0,
            asymptotes=("0", "x"),
            kinks=((-2.0, -1.0),),
        ),
        onnx=OnnxRecipes(native="Mul(Mul(x, 0.5), Clip(Add(x, 2.0), 0.0, 2.0))"),
    ),
)
