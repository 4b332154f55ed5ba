"""The identity and what is linear on both sides of a kink: ReLU, ReLU6, leaky ReLU, PReLU.

At a kink the derivatives are torch's own: that of the constant piece, for the leaky kin that of the left piece. The
second derivative is that of the pieces, 0: the point mass where ``f'`` jumps has no value at a point.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts, ModuleForm
from lit_gelu.activations.numerics.arguments import Derivatives, elementwise, per_channel, quotient
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxRecipes


@elementwise
def identity(x: Tensor) -> Tensor:
    """Return ``f(x) = x``: the activation of a linear network, and what switches one off.

    Example:
        >>> identity(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  2.])
    """
    return x


def identity_joint(x: Tensor) -> Derivatives:
    """``x``, 1, 0."""
    one = torch.ones_like(x)
    return Derivatives(x, one, torch.zeros_like(x), one)


@elementwise
def relu(x: Tensor) -> Tensor:
    """Return the rectified linear unit: ``f(x) = max(x, 0)``.

    Source: Nair and Hinton 2010, "Rectified linear units improve restricted Boltzmann machines" (ICML).

    Example:
        >>> relu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 2.])
    """
    return torch.relu(x)


def relu_joint(x: Tensor) -> Derivatives:
    """``max(x, 0)``; at 0 the left derivatives."""
    first = (x > 0).to(x.dtype)
    return Derivatives(torch.relu(x), first, torch.zeros_like(x), first)


@elementwise
def relu6(x: Tensor) -> Tensor:
    """Return the rectified linear unit with an upper bound: ``f(x) = min(max(x, 0), 6)``.

    Source: Krizhevsky 2010, "Convolutional deep belief networks on CIFAR-10".

    Example:
        >>> relu6(torch.tensor([-1.0, 2.0, 8.0]))
        tensor([0., 2., 6.])
    """
    return F.relu6(x)


def relu6_joint(x: Tensor) -> Derivatives:
    """``min(max(x, 0), 6)``; at the kinks the outer derivatives."""
    first, value = ((x > 0) & (x < 6)).to(x.dtype), F.relu6(x)
    return Derivatives(value, first, torch.zeros_like(x), quotient(value, x, 0.0))


@elementwise
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return the leaky rectified linear unit: ``x`` above 0, else ``negative_slope * x``.

    Source: Maas, Hannun and Ng 2013, "Rectifier nonlinearities improve neural network acoustic models" (ICML).

    Args:
        x: Any shape, floating.
        negative_slope: The slope left of 0.

    Example:
        >>> leaky_relu(torch.tensor([-1.0, 0.0, 2.0]), negative_slope=0.25)
        tensor([-0.2500,  0.0000,  2.0000])
    """
    return leaky_relu_joint(x, negative_slope).value


def leaky_relu_joint(x: Tensor, negative_slope: float | Tensor = 0.01) -> Derivatives:
    """``x`` above 0, else ``negative_slope x``; at 0 the left derivatives."""
    flat = torch.isinf(x) & (negative_slope == 0)  # with slope 0 it is 0 for -inf too, where the product is NaN
    value = torch.where(x > 0, x, negative_slope * torch.where(flat, 0.0, x))
    first = torch.where(x > 0, torch.ones_like(x), negative_slope)
    return Derivatives(value, first, torch.zeros_like(x), first)


@elementwise
def prelu(x: Tensor, weight: float | Tensor) -> Tensor:
    """Return the leaky rectified linear unit with a learned slope: ``x`` above 0, else ``weight * x``.

    Source: He et al. 2015, "Delving Deep into Rectifiers" (arXiv 1502.01852), equation 1.

    Args:
        x: Any shape, floating.
        weight: A number, a tensor with one element, or one of shape ``(channels,)`` for dimension 1 of ``x``.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor or ``weight`` does not fit its channels.

    Example:
        >>> prelu(torch.tensor([[-1.0, -1.0], [3.0, 3.0]]), torch.tensor([0.25, 0.5]))
        tensor([[-0.2500, -0.5000],
                [ 3.0000,  3.0000]])
    """
    return prelu_joint(x, weight).value


def prelu_joint(x: Tensor, weight: float | Tensor) -> Derivatives:
    """`leaky_relu_joint` with one slope, or one a channel."""
    return leaky_relu_joint(x, per_channel("prelu", "weight", weight, x))


class Identity(nn.Identity):
    """``f(x) = x``, standing where an activation stood.

    Networks use ``torch.nn.Identity`` for many things (an absent projection, a dropped layer), so `lit_gelu.surgery`
    lists only this class as an activation site.

    Example:
        >>> Identity()(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  2.])
    """


def _prelu_parameters(module: nn.Module) -> dict[str, Any]:  # by name, as the registry can be pickled
    return {"weight": module.weight}


def _prelu_call(weight: object = None) -> dict[str, Any]:
    return {} if weight is None else {"num_parameters": weight.numel() if isinstance(weight, Tensor) else 1}


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
        joint=identity_joint,
        facts=ActivationFacts("x", "", smoothness=float("inf"), asymptotes=("x", "x")),
        aliases=("linear",),
        modules=(ModuleForm(Identity), ModuleForm(nn.Identity)),
    ),
    ActivationEntry(
        "relu",
        nn.ReLU,
        function=relu,
        joint=relu_joint,
        facts=ActivationFacts(
            formula="max(x, 0)",
            reference="Nair and Hinton 2010, Rectified Linear Units Improve Restricted Boltzmann Machines",
            smoothness=0,
            asymptotes=("0", "x"),
            kinks=((0.0, 1.0),),
        ),
        functions=(torch.relu, torch.relu_, F.relu, F.relu_),
        onnx=OnnxRecipes(native="Relu(x)", operator=OnnxOperator("Relu")),
    ),
    ActivationEntry(
        "relu6",
        nn.ReLU6,
        function=relu6,
        joint=relu6_joint,
        facts=ActivationFacts(
            formula="min(max(x, 0), 6)",
            reference="Howard et al. 2017, MobileNets (arXiv 1704.04861)",
            smoothness=0,
            asymptotes=("0", "6"),
            kinks=((0.0, 1.0), (6.0, -1.0)),
        ),
        functions=(F.relu6,),
        onnx=OnnxRecipes(native="Clip(x, 0.0, 6.0)"),
    ),
    ActivationEntry(
        "leaky_relu",
        nn.LeakyReLU,
        function=leaky_relu,
        joint=leaky_relu_joint,
        facts=_leaky_facts,
        modules=(ModuleForm(nn.LeakyReLU, keeps_input=True),),
        functions=(F.leaky_relu, F.leaky_relu_),
        onnx=OnnxRecipes(
            native="LeakyRelu(x, alpha=negative_slope)",
            primitives="Add(Relu(x), Mul(Min(x, 0.0), negative_slope))",
            operator=OnnxOperator("LeakyRelu", {"alpha": ("negative_slope", 0.01)}),
        ),
    ),
    ActivationEntry(
        "prelu",
        nn.PReLU,
        function=prelu,
        joint=prelu_joint,
        facts=_prelu_facts,
        modules=(ModuleForm(nn.PReLU, live=_prelu_parameters),),
        calls={F.prelu: _prelu_call},
        onnx=OnnxRecipes(native="PRelu(x, weight)", primitives="Add(Relu(x), Mul(Min(x, 0.0), weight))"),
    ),
)
