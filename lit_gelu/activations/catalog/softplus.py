"""Softplus and log-sigmoid."""

from typing import Any

from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import NO_ARGUMENTS, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm, ReadAttributes
from lit_gelu.activations.info import ActivationFacts


def _live(module: nn.Module) -> dict[str, Any]:
    return {"beta": module.beta}


ENTRIES = (
    ActivationEntry(
        "softplus",
        nn.Softplus,
        function=functional.softplus,
        derivative=functional.softplus_derivative,
        facts=ActivationFacts(
            "log(1 + exp(beta x)) / beta (torch: x where beta x > threshold)",
            "Dugas et al. 2001, Incorporating Second-Order Functional Knowledge for Better Option Pricing",
            smoothness=float("inf"),
            asymptotes=("0", "x"),
        ),
        modules=(ModuleForm(nn.Softplus, ReadAttributes(("beta", "threshold")), live=_live),),
        functions=((F.softplus, ()),),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "log_sigmoid",
        nn.LogSigmoid,
        function=functional.log_sigmoid,
        derivative=functional.log_sigmoid_derivative,
        facts=ActivationFacts("-log(1 + exp(-x))", smoothness=float("inf"), asymptotes=("x", "0")),
        aliases=("logsigmoid",),
        modules=(ModuleForm(nn.LogSigmoid, NO_ARGUMENTS),),
        functions=((F.logsigmoid, ()),),
        registered_by=REGISTERED_BY,
    ),
)
