"""Hard Mish."""

import torch
from torch import Tensor, nn

from lit_gelu.activations.families._package import NO_ARGUMENTS
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import ModuleForm
from lit_gelu.activations.numerics.arguments import DerivativeOf, Derivatives, elementwise
from lit_gelu.activations.onnx_recipes import OnnxRecipes


@elementwise
def hard_mish(x: Tensor) -> Tensor:
    """Piecewise quadratic form of Mish: ``f(x) = x min(max(x + 2, 0), 2) / 2``.

    Source: Misra 2020, notes on "H-Mish" (github.com/digantamisra98/H-Mish), as in timm's ``hard_mish``.

    Args:
        x: Any shape, floating.

    Returns:
        A tensor like ``x``. ``f(inf) = inf`` and ``f(-inf) = 0``.

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


ENTRIES = (
    ActivationEntry(
        "hard_mish",
        HardMish,
        function=hard_mish,
        derivative=DerivativeOf(hard_mish_joint),
        joint=hard_mish_joint,
        facts=ActivationFacts(
            formula="x min(max(x + 2, 0), 2) / 2",
            reference="Misra 2020, H-Mish (github.com/digantamisra98/H-Mish)",
            smoothness=0,
            asymptotes=("0", "x"),
            kinks=((-2.0, -1.0),),
        ),
        modules=(ModuleForm(HardMish, NO_ARGUMENTS),),
        onnx=OnnxRecipes(native="Mul(Mul(x, 0.5), Clip(Add(x, 2.0), 0.0, 2.0))"),
    ),
)
