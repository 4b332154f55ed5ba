"""The stochastic zero-identity map; its derivatives are those of its expectation, GELU."""

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import HENDRYCKS_2016, NO_ARGUMENTS, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.zero_identity_map import ZeroIdentityMap

ENTRIES = (
    ActivationEntry(
        "zero_identity_map",
        ZeroIdentityMap,
        function=functional.gelu,
        derivative=functional.gelu_derivative,
        facts=ActivationFacts(
            "m x with m ~ Bernoulli(Phi(x)) in training; x Phi(x) in evaluation",
            HENDRYCKS_2016,
            smoothness=float("inf"),
            asymptotes=("0", "x"),
            stochastic=True,
        ),
        aliases=("soi",),
        modules=(ModuleForm(ZeroIdentityMap, NO_ARGUMENTS),),
        registered_by=REGISTERED_BY,
    ),
)
