"""Mish."""

from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import INPLACE, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.info import ActivationFacts

ENTRIES = (
    ActivationEntry(
        "mish",
        nn.Mish,
        function=functional.mish,
        derivative=functional.mish_derivative,
        facts=ActivationFacts(
            "x tanh(log(1 + exp(x)))",
            "Misra 2019, Mish: A Self Regularized Non-Monotonic Activation Function (arXiv 1908.08681)",
            smoothness=float("inf"),
            asymptotes=("0", "x"),
        ),
        modules=(ModuleForm(nn.Mish, INPLACE),),
        functions=((F.mish, ()),),
        registered_by=REGISTERED_BY,
    ),
)
