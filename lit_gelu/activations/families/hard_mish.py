"""Hard Mish.

At both joints the derivatives are those of the outer piece, as in `hard_swish`.
"""

import torch
from torch import Tensor, nn

from lit_gelu.activations.families._package import NO_ARGUMENTS
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import ModuleForm
from lit_gelu.activations.numerics.arguments import elementwise, elementwise_derivative, keep_nan
from lit_gelu.activations.onnx_recipes import OnnxRecipes


@elementwise
def hard_mish(x: Tensor) -> Tensor:
    """Piecewise quadratic form of Mish: ``f(x) = x min(max(x + 2, 0), 2) / 2``.

    Source: Misra 2020, notes on "H-Mish" (github.com/digantamisra98/H-Mish), as in timm's ``hard_mish``.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor like ``x``. ``f(inf) = inf`` and ``f(-inf) = 0``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> hard_mish(torch.tensor([-3.0, -1.0, 0.0, 1.0]))
        tensor([ 0.0000, -0.5000,  0.0000,  1.0000])
    """
    inside = x.clamp(-2.0, 0.0)
    return torch.where(x >= 0, x, torch.where(x <= -2.0, 0.0, inside * (0.5 * inside + 1.0)))


@elementwise_derivative
def hard_mish_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `hard_mish`: between -2 and 0 ``x + 1`` and 1.

    ``f'`` is 0 below and 1 above; it jumps by -1 at -2 and is continuous at 0. ``f''`` is 0 outside.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``; ``f'(-2) = 0`` and ``f'(0) = 1``; ``f''(-2) = f''(0) = 0``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> hard_mish_derivative(torch.tensor([-3.0, -1.5, 0.0, 1.0]))
        tensor([ 0.0000, -0.5000,  1.0000,  1.0000])
    """
    if order == 2:
        return keep_nan(x, ((x > -2.0) & (x < 0)).to(x.dtype))
    return torch.where(x >= 0, 1.0, torch.where(x <= -2.0, 0.0, x.clamp(-2.0, 0.0) + 1.0))


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
        derivative=hard_mish_derivative,
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
