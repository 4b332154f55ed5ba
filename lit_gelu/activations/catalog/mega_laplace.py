"""The "Laplace" attention function of Mega."""

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm, ReadAttributes
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.mega_laplace import MegaLaplace

ENTRIES = (
    ActivationEntry(
        "mega_laplace",
        MegaLaplace,
        function=functional.mega_laplace,
        derivative=functional.mega_laplace_derivative,
        facts=ActivationFacts(
            formula="Phi((x - mu) / sigma)",
            reference="Ma et al. 2022, Mega: Moving Average Equipped Gated Attention (arXiv 2209.10655)",
            smoothness=float("inf"),
            asymptotes=("0", "1"),
            gate=True,
        ),
        aliases=("laplace",),
        modules=(ModuleForm(MegaLaplace, ReadAttributes(("mu", "sigma"))),),
        registered_by=REGISTERED_BY,
    ),
)
