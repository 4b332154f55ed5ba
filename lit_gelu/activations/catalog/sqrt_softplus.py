"""The square root of softplus, which scores the experts of a router."""

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import NO_ARGUMENTS, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.sqrt_softplus import SqrtSoftplus

ENTRIES = (
    ActivationEntry(
        "sqrt_softplus",
        SqrtSoftplus,
        function=functional.sqrt_softplus,
        derivative=functional.sqrt_softplus_derivative,
        facts=ActivationFacts(
            formula="sqrt(log(1 + exp(x)))",
            reference="transformers 5.23, SqrtSoftplusActivation",
            smoothness=float("inf"),
            asymptotes=("0", "sqrt(x)"),
            gate=True,
        ),
        aliases=("sqrtsoftplus",),
        modules=(ModuleForm(SqrtSoftplus, NO_ARGUMENTS),),
        registered_by=REGISTERED_BY,
    ),
)
