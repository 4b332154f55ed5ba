"""Hard Swish.

At a kink the derivatives are torch's own: those of the outer piece.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families._package import INPLACE
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import ModuleForm
from lit_gelu.activations.numerics.arguments import Derivatives, elementwise, elementwise_derivative, keep_nan
from lit_gelu.activations.numerics.piecewise import INF, LINE, Piece, PiecewiseMoments, Term
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxRecipes, OnnxSpelling

BOUND = 3.0  # the gate (x + 3) / 6 is 0 at -3 and 1 at 3


@elementwise
def hard_swish(x: Tensor) -> Tensor:
    """Piecewise quadratic form of SiLU: ``f(x) = x min(max(x + 3, 0), 6) / 6``.

    Source: Howard et al. 2019, "Searching for MobileNetV3" (arXiv 1905.02244), section 5.2.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor like ``x``. ``f(inf) = inf`` and ``f(-inf) = 0``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> hard_swish(torch.tensor([-4.0, -1.5, 0.0, 3.0]))
        tensor([ 0.0000, -0.3750,  0.0000,  3.0000])
    """
    inside = x.clamp(-BOUND, BOUND)
    middle = inside * (inside + BOUND) / (2.0 * BOUND)
    return torch.where(x >= BOUND, x, torch.where(x <= -BOUND, 0.0, middle))


@elementwise_derivative
def hard_swish_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `hard_swish`: between -3 and 3 ``(2 x + 3) / 6`` and ``1 / 3``.

    ``f'`` is 0 below and 1 above, and jumps by -1/2 at both ends. ``f''`` is 0 outside.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``; ``f'(-3) = 0`` and ``f'(3) = 1``, as in torch.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> hard_swish_derivative(torch.tensor([-4.0, -1.5, 0.0, 3.0]))
        tensor([0.0000, 0.0000, 0.5000, 1.0000])
    """
    inside = (x > -BOUND) & (x < BOUND)
    if order == 2:
        return keep_nan(x, inside.to(x.dtype) / BOUND)
    middle = (2.0 * x.clamp(-BOUND, BOUND) + BOUND) / (2.0 * BOUND)
    return torch.where(x >= BOUND, 1.0, torch.where(x <= -BOUND, 0.0, middle))


def hard_swish_joint(x: Tensor) -> Derivatives:
    """``x clamp(x + 3, 0, 6) / 6``; at the kinks the outer derivatives."""
    gate = (x / 6 + 0.5).clamp(0.0, 1.0)
    inside = ((x > -3) & (x < 3)).to(x.dtype)
    bounded = x.clamp(-3.0, 3.0)
    return Derivatives(x.clamp(min=-3.0) * gate, gate + inside * bounded / 6, inside / 3, gate)


_PIECES = Piece(-INF, -3.0), Piece(-3.0, 3.0, (Term(1 / 6, 2), Term(0.5, 1))), Piece(3.0, INF, LINE)
_FORMULA = "Mul(x, Clip(Add(Mul(x, ONE_SIXTH), 0.5), 0.0, 1.0))"


ENTRIES = (
    ActivationEntry(
        "hard_swish",
        nn.Hardswish,
        function=hard_swish,
        derivative=hard_swish_derivative,
        joint=hard_swish_joint,
        moments=PiecewiseMoments(_PIECES),
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
