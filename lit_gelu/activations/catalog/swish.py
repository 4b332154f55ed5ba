"""SiLU, and Swish with its slope as an argument."""

from typing import Any

from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import INPLACE, REGISTERED_BY, channel_arguments, live_channels
from lit_gelu.activations.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.swish import Swish


def _read(module: nn.Module) -> dict[str, Any]:
    return {"beta": module.initial_beta, **channel_arguments(module)}


def _live(module: nn.Module) -> dict[str, Any]:
    return {"beta": module.beta, **live_channels(module)}


def _swish_facts(learnable: bool = False, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        "x sigmoid(beta x)",
        "Ramachandran, Zoph and Le 2017, Searching for Activation Functions (arXiv 1710.05941)",
        smoothness=float("inf"),
        asymptotes=("0", "x"),
        learnable=learnable,
    )


ENTRIES = (
    ActivationEntry(
        "silu",
        nn.SiLU,
        function=functional.silu,
        derivative=functional.silu_derivative,
        facts=ActivationFacts(
            "x sigmoid(x)",
            "Hendrycks and Gimpel 2016 (arXiv 1606.08415); Elfwing, Uchibe and Doya 2018 (arXiv 1702.03118)",
            smoothness=float("inf"),
            asymptotes=("0", "x"),
        ),
        modules=(ModuleForm(nn.SiLU, INPLACE),),
        functions=((F.silu, ()),),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "swish",
        Swish,
        function=functional.swish,
        derivative=functional.swish_derivative,
        facts=_swish_facts,
        modules=(ModuleForm(Swish, _read, live=_live),),
        registered_by=REGISTERED_BY,
    ),
)
