"""Hard Swish."""

from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import INPLACE, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.info import ActivationFacts

ENTRIES = (
    ActivationEntry(
        "hard_swish",
        nn.Hardswish,
        function=functional.hard_swish,
        derivative=functional.hard_swish_derivative,
        facts=ActivationFacts(
            formula="x min(max(x + 3, 0), 6) / 6",
            reference="Howard et al. 2019, Searching for MobileNetV3 (arXiv 1905.02244)",
            smoothness=0,
            asymptotes=("0", "x"),
            kinks=((-3.0, -0.5), (3.0, -0.5)),
        ),
        aliases=("hardswish",),
        modules=(ModuleForm(nn.Hardswish, INPLACE),),
        functions=((F.hardswish, ()),),
        registered_by=REGISTERED_BY,
    ),
)
