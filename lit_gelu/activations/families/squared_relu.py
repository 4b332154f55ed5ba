"""Squared ReLU."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families._package import NO_ARGUMENTS
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import ModuleForm
from lit_gelu.activations.numerics.arguments import Derivatives, elementwise, elementwise_derivative, keep_nan
from lit_gelu.activations.numerics.piecewise import INF, Piece, PiecewiseMoments, Term
from lit_gelu.activations.onnx_recipes import OnnxRecipes


@elementwise
def relu2(x: Tensor) -> Tensor:
    """Squared rectified linear unit: ``f(x) = max(x, 0)**2``.

    Source: So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling" (arXiv 2109.08668).

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> relu2(torch.tensor([-1.0, 0.5, 3.0]))
        tensor([0.0000, 0.2500, 9.0000])
    """
    positive = torch.relu(x)
    return positive * positive


@elementwise_derivative
def relu2_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `relu2`: ``2 max(x, 0)``; and 2 above 0, else 0.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``; ``f''(0) = 0``, the value on the left.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> relu2_derivative(torch.tensor([-1.0, 0.5, 3.0]))
        tensor([0., 1., 6.])
    """
    return 2.0 * torch.relu(x) if order == 1 else keep_nan(x, 2.0 * (x > 0).to(x.dtype))


def relu2_joint(x: Tensor) -> Derivatives:
    """Squared ReLU."""
    right = x.clamp(min=0.0)
    return Derivatives(right * right, 2 * right, 2 * (x > 0).to(x.dtype), right)


class SquaredReLU(nn.Module):
    """``f(x) = max(x, 0)^2``, elementwise, any shape and floating dtype.

    Source: So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling" (arXiv 2109.08668),
    section 4.

    Example:
        >>> SquaredReLU()(torch.tensor([-1.0, 0.5, 3.0]))
        tensor([0.0000, 0.2500, 9.0000])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to a floating tensor of any shape, elementwise."""
        return F.relu(x).square()


ENTRIES = (
    ActivationEntry(
        "relu2",
        SquaredReLU,
        function=relu2,
        derivative=relu2_derivative,
        joint=relu2_joint,
        moments=PiecewiseMoments((Piece(-INF, 0.0), Piece(0.0, INF, (Term(1.0, 2),)))),
        facts=ActivationFacts(
            formula="max(x, 0)^2",
            reference="So et al. 2021, Primer (arXiv 2109.08668)",
            smoothness=1,
            asymptotes=("0", "x^2"),
        ),
        aliases=("squared_relu", "relu_squared"),
        modules=(ModuleForm(SquaredReLU, NO_ARGUMENTS),),
        onnx=OnnxRecipes(native="r = Relu(x); Mul(r, r)", policy={"* * *": "native"}),  # rounds once
    ),
)
