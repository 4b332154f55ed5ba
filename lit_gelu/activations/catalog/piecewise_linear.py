"""Identity, ReLU and the activations that are linear on both sides of zero."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import INPLACE, NO_ARGUMENTS, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm, ReadAttributes
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.channels import channel_number
from lit_gelu.activations.modules.identity import Identity


def _prelu_parameters(module: nn.Module) -> dict[str, Any]:
    return {"weight": module.weight}


def build_prelu(num_parameters: int = 1, init: float = 0.25) -> nn.Module:
    """Build a PReLU.

    Args:
        num_parameters: How many slopes it learns: one, or one a channel.
        init: Their initial value.

    Returns:
        ``torch.nn.PReLU``.

    Raises:
        ActivationArgumentError: If the number is no positive integer, or more than memory should be asked for.

    Example:
        >>> build_prelu(3)
        PReLU(num_parameters=3)
    """
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
        function=functional.identity,
        derivative=functional.identity_derivative,
        facts=ActivationFacts("x", "", smoothness=float("inf"), asymptotes=("x", "x")),
        aliases=("linear",),
        modules=(ModuleForm(Identity, NO_ARGUMENTS), ModuleForm(nn.Identity, NO_ARGUMENTS)),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "relu",
        nn.ReLU,
        function=functional.relu,
        derivative=functional.relu_derivative,
        facts=ActivationFacts(
            formula="max(x, 0)",
            reference="Nair and Hinton 2010, Rectified Linear Units Improve Restricted Boltzmann Machines",
            smoothness=0,
            asymptotes=("0", "x"),
            kinks=((0.0, 1.0),),
        ),
        modules=(ModuleForm(nn.ReLU, INPLACE),),
        functions=((torch.relu, ()), (torch.relu_, ()), (F.relu, ()), (F.relu_, ())),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "relu6",
        nn.ReLU6,
        function=functional.relu6,
        derivative=functional.relu6_derivative,
        facts=ActivationFacts(
            formula="min(max(x, 0), 6)",
            reference="Howard et al. 2017, MobileNets (arXiv 1704.04861)",
            smoothness=0,
            asymptotes=("0", "6"),
            kinks=((0.0, 1.0), (6.0, -1.0)),
        ),
        modules=(ModuleForm(nn.ReLU6, INPLACE),),
        functions=((F.relu6, ()),),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "leaky_relu",
        nn.LeakyReLU,
        function=functional.leaky_relu,
        derivative=functional.leaky_relu_derivative,
        facts=_leaky_facts,
        modules=(ModuleForm(nn.LeakyReLU, ReadAttributes(("negative_slope", "inplace"))),),
        functions=((F.leaky_relu, ()), (F.leaky_relu_, ())),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "prelu",
        build_prelu,
        function=functional.prelu,
        derivative=functional.prelu_derivative,
        facts=_prelu_facts,
        modules=(ModuleForm(nn.PReLU, ReadAttributes(("num_parameters", "init")), live=_prelu_parameters),),
        registered_by=REGISTERED_BY,
    ),
)
