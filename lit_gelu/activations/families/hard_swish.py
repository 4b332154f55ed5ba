"""Hard Swish."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families._package import INPLACE
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import ModuleForm
from lit_gelu.activations.numerics.arguments import DerivativeOf, Derivatives, elementwise
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxRecipes, OnnxSpelling

BOUND = 3.0  # the gate (x + 3) / 6 is 0 at -3 and 1 at 3


@elementwise
def hard_swish(x: Tensor) -> Tensor:
    """Piecewise quadratic form of SiLU: ``f(x) = x min(max(x + 3, 0), 6) / 6``.

    Source: Howard et al. 2019, "Searching for MobileNetV3" (arXiv 1905.02244), section 5.2.

    Args:
        x: Any shape, floating.

    Returns:
        A tensor like ``x``. ``f(inf) = inf`` and ``f(-inf) = 0``.

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


_FORMULA = "Mul(x, Clip(Add(Mul(x, ONE_SIXTH), 0.5), 0.0, 1.0))"


ENTRIES = (
    ActivationEntry(
        "hard_swish",
        nn.Hardswish,
        function=hard_swish,
        derivative=DerivativeOf(hard_swish_joint),
        joint=hard_swish_joint,
        facts=ActivationFacts(
            formula="x min(max(x + 3, 0), 6) / 6",
            reference="Howard et al. 2019, Searching for MobileNetV3 (arXiv 1905.02244)",
            smoothness=0,
            asymptotes=("0", "x"),
            kinks=((-3.0, -0.5), (3.0, -0.5)),
        ),
        aliases=("hardswish", "hard_silu"),
        modules=(ModuleForm(nn.Hardswish, INPLACE, keeps_input=True),),
        functions=((F.hardswish, ()),),
        onnx=OnnxRecipes(
            native="HardSwish(x)",
            primitives=_FORMULA,
            spellings=(OnnxSpelling(_FORMULA),),
            operator=OnnxOperator("HardSwish"),
        ),
    ),
)
