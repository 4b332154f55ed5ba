"""Squared ReLU."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families._package import NO_ARGUMENTS
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import ModuleForm
from lit_gelu.activations.numerics.arguments import DerivativeOf, Derivatives, elementwise
from lit_gelu.activations.onnx_recipes import OnnxRecipes


@elementwise
def relu2(x: Tensor) -> Tensor:
    """Squared rectified linear unit: ``f(x) = max(x, 0)**2``.

    Source: So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling" (arXiv 2109.08668).

    Args:
        x: Any shape, floating.

    Returns:
        A tensor like ``x``.

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
        derivative=DerivativeOf(relu2_joint),
        joint=relu2_joint,
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
