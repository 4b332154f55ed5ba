"""The identity and what is linear on both sides of a kink: ReLU, ReLU6, leaky ReLU, PReLU.

At a kink the derivatives are torch's own: that of the constant piece, for the leaky kin that of the left piece. The
second derivative is that of the pieces, 0: the point mass where ``f'`` jumps has no value at a point.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families._package import INPLACE, NO_ARGUMENTS
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import CallForm, ModuleForm, ReadAttributes
from lit_gelu.activations.numerics.arguments import (
    Derivatives,
    elementwise,
    elementwise_derivative,
    keep_nan,
    per_channel,
    quotient,
)
from lit_gelu.activations.numerics.channels import channel_number
from lit_gelu.activations.numerics.piecewise import INF, LINE, Piece, PiecewiseMoments, Term, two_sided
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxRecipes

RELU6_BOUND = 6.0


@elementwise
def identity(x: Tensor) -> Tensor:
    """Return ``f(x) = x``: the activation of a linear network, and what switches one off.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        ``x`` itself.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> identity(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  2.])
    """
    return x


@elementwise_derivative
def identity_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `identity`: 1 or 0.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> identity_derivative(torch.tensor([-1.0, 2.0]))
        tensor([1., 1.])
    """
    return keep_nan(x, torch.ones_like(x) if order == 1 else torch.zeros_like(x))


@elementwise
def relu(x: Tensor) -> Tensor:
    """Rectified linear unit: ``f(x) = max(x, 0)``.

    Source: Nair and Hinton 2010, "Rectified linear units improve restricted Boltzmann machines" (ICML).

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> relu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 2.])
    """
    return torch.relu(x)


@elementwise_derivative
def relu_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `relu`: 1 above 0, else 0; and 0 everywhere.

    ``f'`` jumps by 1 at 0.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``; ``f'(0) = 0``, as in torch.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> relu_derivative(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 1.])
    """
    return keep_nan(x, (x > 0).to(x.dtype) if order == 1 else torch.zeros_like(x))


@elementwise
def relu6(x: Tensor) -> Tensor:
    """Rectified linear unit with an upper bound: ``f(x) = min(max(x, 0), 6)``.

    Source: Krizhevsky 2010, "Convolutional deep belief networks on CIFAR-10".

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> relu6(torch.tensor([-1.0, 2.0, 8.0]))
        tensor([0., 2., 6.])
    """
    return torch.nn.functional.relu6(x)


@elementwise_derivative
def relu6_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `relu6`: 1 between 0 and 6, else 0; and 0 everywhere.

    ``f'`` jumps by 1 at 0 and by -1 at 6.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``; ``f'(0) = f'(6) = 0``, as in torch.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> relu6_derivative(torch.tensor([-1.0, 2.0, 8.0]))
        tensor([0., 1., 0.])
    """
    inside = (x > 0) & (x < RELU6_BOUND)
    return keep_nan(x, inside.to(x.dtype) if order == 1 else torch.zeros_like(x))


@elementwise
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Leaky rectified linear unit: ``x`` above 0, else ``negative_slope * x``.

    Source: Maas, Hannun and Ng 2013, "Rectifier nonlinearities improve neural network acoustic models" (ICML).

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        negative_slope: The slope left of 0.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> leaky_relu(torch.tensor([-1.0, 0.0, 2.0]), negative_slope=0.25)
        tensor([-0.2500,  0.0000,  2.0000])
    """
    return _leaky(x, negative_slope)


@elementwise_derivative
def leaky_relu_derivative(x: Tensor, order: int = 1, negative_slope: float = 0.01) -> Tensor:
    """First or second derivative of `leaky_relu`: 1 above 0, else ``negative_slope``; and 0 everywhere.

    ``f'`` jumps by ``1 - negative_slope`` at 0.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.
        negative_slope: The slope left of 0.

    Returns:
        A tensor like ``x``; ``f'(0) = negative_slope``, as in torch.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> leaky_relu_derivative(torch.tensor([-1.0, 0.0, 2.0]), negative_slope=0.25)
        tensor([0.2500, 0.2500, 1.0000])
    """
    return _leaky_derivative(x, order, negative_slope)


@elementwise
def prelu(x: Tensor, weight: float | Tensor) -> Tensor:
    """Leaky rectified linear unit with a learned slope: ``x`` above 0, else ``weight * x``.

    Source: He et al. 2015, "Delving Deep into Rectifiers" (arXiv 1502.01852), equation 1.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        weight: A number, a tensor with one element, or one of shape ``(channels,)`` for dimension 1 of ``x``.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``weight`` does not fit its channels.

    Example:
        >>> prelu(torch.tensor([[-1.0, -1.0], [3.0, 3.0]]), torch.tensor([0.25, 0.5]))
        tensor([[-0.2500, -0.5000],
                [ 3.0000,  3.0000]])
    """
    return _leaky(x, per_channel("prelu", "weight", weight, x))


@elementwise_derivative
def prelu_derivative(x: Tensor, order: int = 1, *, weight: float | Tensor) -> Tensor:
    """First or second derivative of `prelu` with respect to ``x``: 1 above 0, else ``weight``; and 0 everywhere.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.
        weight: A number, a tensor with one element, or one of shape ``(channels,)`` for dimension 1 of ``x``.

    Returns:
        A tensor like ``x``; ``f'(0) = weight``, as in torch.

    Raises:
        ActivationArgumentError: If ``x`` is no floating tensor, ``order`` neither 1 nor 2, or ``weight`` does not fit.

    Example:
        >>> prelu_derivative(torch.tensor([-1.0, 2.0]), weight=0.25)
        tensor([0.2500, 1.0000])
    """
    return _leaky_derivative(x, order, per_channel("prelu_derivative", "weight", weight, x))


def _leaky(x: Tensor, slope: float | Tensor) -> Tensor:
    """Return ``x`` above 0, else ``slope * x``; with slope 0 that is 0 for ``-inf`` too, where the product is NaN."""
    flat = torch.isinf(x) & (slope == 0)
    return torch.where(x > 0, x, slope * torch.where(flat, 0.0, x))


def _leaky_derivative(x: Tensor, order: int, slope: float | Tensor) -> Tensor:
    """Return ``f'`` or ``f''`` for a slope that has been shaped."""
    return keep_nan(x, torch.where(x > 0, torch.ones_like(x), slope) if order == 1 else torch.zeros_like(x))


class Identity(nn.Identity):
    """``f(x) = x``, standing where an activation stood.

    Networks use ``torch.nn.Identity`` for many things (an absent projection, a dropped layer), so `lit_gelu.surgery`
    lists only this class as an activation site.

    Example:
        >>> Identity()(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  2.])
    """


def identity_joint(x: Tensor) -> Derivatives:
    """The identity."""
    one = torch.ones_like(x)
    return Derivatives(x, one, torch.zeros_like(x), one)


def relu_joint(x: Tensor) -> Derivatives:
    """ReLU; at 0 the left derivatives."""
    first = (x > 0).to(x.dtype)
    return Derivatives(x.clamp(min=0.0), first, torch.zeros_like(x), first)


def leaky_relu_joint(x: Tensor, negative_slope: float = 0.01) -> Derivatives:
    """Leaky ReLU; at 0 the left derivatives."""
    first = torch.where(x > 0, torch.ones_like(x), negative_slope)
    return Derivatives(_leaky(x, negative_slope), first, torch.zeros_like(x), first)


def relu6_joint(x: Tensor) -> Derivatives:
    """ReLU6; at the kinks the outer derivatives."""
    first = ((x > 0) & (x < 6)).to(x.dtype)
    value = x.clamp(0.0, 6.0)
    return Derivatives(value, first, torch.zeros_like(x), quotient(value, x, 0.0))


def leaky_relu_pieces(negative_slope: float = 0.01) -> tuple[Piece, ...]:
    """Leaky ReLU, for its moments."""
    return two_sided(negative_slope)


def prelu_pieces(init: float = 0.25) -> tuple[Piece, ...]:
    """PReLU as it starts, for its moments."""
    return two_sided(init)


def _prelu_parameters(module: nn.Module) -> dict[str, Any]:
    return {"weight": module.weight}


def _prelu_call(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the spec for a call ``F.prelu(x, weight)``."""
    weight = arguments.pop("weight", None)
    if weight is None:
        return arguments
    return arguments | {"num_parameters": weight.numel() if torch.is_tensor(weight) else 1}


def build_prelu(num_parameters: int = 1, init: float = 0.25) -> nn.Module:
    """Build a PReLU."""
    return nn.PReLU(channel_number("'prelu'", num_parameters, "num_parameters"), init)


def _leaky_facts(negative_slope: float = 0.01, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        formula="x if x > 0 else negative_slope x",
        reference="Maas, Hannun and Ng 2013, Rectifier Nonlinearities Improve Neural Network Acoustic Models",
        smoothness=0,
        asymptotes=(f"{negative_slope} x", "x"),
        kinks=((0.0, 1.0 - negative_slope),),
    )


def _prelu_facts(init: float = 0.25, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        formula="x if x > 0 else weight x, with a learned weight (one, or one a channel)",
        reference="He et al. 2015, Delving Deep into Rectifiers (arXiv 1502.01852)",
        smoothness=0,
        asymptotes=("weight x", "x"),
        kinks=((0.0, 1.0 - init),),
        learnable=True,
    )


ENTRIES = (
    ActivationEntry(
        "identity",
        Identity,
        function=identity,
        derivative=identity_derivative,
        joint=identity_joint,
        moments=PiecewiseMoments((Piece(-INF, INF, LINE),)),
        facts=ActivationFacts("x", "", smoothness=float("inf"), asymptotes=("x", "x")),
        aliases=("linear",),
        modules=(ModuleForm(Identity, NO_ARGUMENTS), ModuleForm(nn.Identity, NO_ARGUMENTS)),
    ),
    ActivationEntry(
        "relu",
        nn.ReLU,
        function=relu,
        derivative=relu_derivative,
        joint=relu_joint,
        moments=PiecewiseMoments(two_sided(0.0)),
        facts=ActivationFacts(
            formula="max(x, 0)",
            reference="Nair and Hinton 2010, Rectified Linear Units Improve Restricted Boltzmann Machines",
            smoothness=0,
            asymptotes=("0", "x"),
            kinks=((0.0, 1.0),),
        ),
        modules=(ModuleForm(nn.ReLU, INPLACE),),
        functions=((torch.relu, ()), (torch.relu_, ()), (F.relu, ()), (F.relu_, ())),
        onnx=OnnxRecipes(native="Relu(x)", operator=OnnxOperator("Relu")),
    ),
    ActivationEntry(
        "relu6",
        nn.ReLU6,
        function=relu6,
        derivative=relu6_derivative,
        joint=relu6_joint,
        moments=PiecewiseMoments((Piece(-INF, 0.0), Piece(0.0, 6.0, LINE), Piece(6.0, INF, (Term(6.0),)))),
        facts=ActivationFacts(
            formula="min(max(x, 0), 6)",
            reference="Howard et al. 2017, MobileNets (arXiv 1704.04861)",
            smoothness=0,
            asymptotes=("0", "6"),
            kinks=((0.0, 1.0), (6.0, -1.0)),
        ),
        modules=(ModuleForm(nn.ReLU6, INPLACE),),
        functions=((F.relu6, ()),),
        onnx=OnnxRecipes(native="Clip(x, 0.0, 6.0)"),
    ),
    ActivationEntry(
        "leaky_relu",
        nn.LeakyReLU,
        function=leaky_relu,
        derivative=leaky_relu_derivative,
        joint=leaky_relu_joint,
        moments=PiecewiseMoments(leaky_relu_pieces),
        facts=_leaky_facts,
        modules=(ModuleForm(nn.LeakyReLU, ReadAttributes(("negative_slope", "inplace")), keeps_input=True),),
        functions=((F.leaky_relu, ()), (F.leaky_relu_, ())),
        onnx=OnnxRecipes(
            native="LeakyRelu(x, alpha=negative_slope)",
            primitives="Add(Relu(x), Mul(Min(x, 0.0), negative_slope))",
            operator=OnnxOperator("LeakyRelu", {"alpha": ("negative_slope", 0.01)}),
        ),
    ),
    ActivationEntry(
        "prelu",
        build_prelu,
        function=prelu,
        derivative=prelu_derivative,
        moments=PiecewiseMoments(prelu_pieces),
        facts=_prelu_facts,
        modules=(ModuleForm(nn.PReLU, ReadAttributes(("num_parameters", "init")), live=_prelu_parameters),),
        calls=(CallForm(F.prelu, ("weight",), _prelu_call),),
        onnx=OnnxRecipes(
            native="PRelu(x, weight)",
            primitives="Add(Relu(x), Mul(Min(x, 0.0), weight))",
        ),
    ),
)
