"""The stochastic zero-identity map; its derivatives are those of its expectation, GELU or SiLU."""

from typing import Any

from torch import nn

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import HENDRYCKS_2016, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm, ReadAttributes
from lit_gelu.activations.functional.zero_identity_map import expectation
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.zero_identity_map import ZeroIdentityMap

IN_EVALUATION = {"expectation": "", "stochastic": "m x", "mean": "the mean of some m, times x,"}


def _live(module: nn.Module) -> dict[str, Any]:
    return {"gate": module.gate}


def _facts(gate: str = "normal", evaluation: str = "expectation", **_: Any) -> ActivationFacts:
    probability = "Phi(x)" if gate == "normal" else "sigmoid(x)"
    in_evaluation = IN_EVALUATION[evaluation] or f"x {probability}"
    return ActivationFacts(
        f"m x with m ~ Bernoulli({probability}) in training; {in_evaluation} in evaluation",
        HENDRYCKS_2016 if gate == "normal" else "Ba and Frey 2013, Adaptive Dropout for Training Deep Neural Networks",
        smoothness=float("inf"),
        asymptotes=("0", "x"),
        stochastic=True,
        stochastic_in_evaluation=evaluation != "expectation",
    )


ENTRIES = (
    ActivationEntry(
        "zero_identity_map",
        ZeroIdentityMap,
        function=expectation,
        derivative=functional.zero_identity_map_derivative,
        facts=_facts,
        aliases=("soi",),
        modules=(ModuleForm(ZeroIdentityMap, ReadAttributes(("gate", "evaluation", "passes")), live=_live),),
        registered_by=REGISTERED_BY,
    ),
)
