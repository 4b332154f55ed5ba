"""Squared ReLU."""

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import NO_ARGUMENTS, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.squared_relu import SquaredReLU

ENTRIES = (
    ActivationEntry(
        "relu2",
        SquaredReLU,
        function=functional.relu2,
        derivative=functional.relu2_derivative,
        facts=ActivationFacts(
            formula="max(x, 0)^2",
            reference="So et al. 2021, Primer (arXiv 2109.08668)",
            smoothness=1,
            asymptotes=("0", "x^2"),
        ),
        aliases=("squared_relu", "relu_squared"),
        modules=(ModuleForm(SquaredReLU, NO_ARGUMENTS),),
        registered_by=REGISTERED_BY,
    ),
)
