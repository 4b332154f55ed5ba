"""Hard Mish."""

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import NO_ARGUMENTS, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.hard_mish import HardMish

ENTRIES = (
    ActivationEntry(
        "hard_mish",
        HardMish,
        function=functional.hard_mish,
        derivative=functional.hard_mish_derivative,
        facts=ActivationFacts(
            formula="x min(max(x + 2, 0), 2) / 2",
            reference="Misra 2020, H-Mish (github.com/digantamisra98/H-Mish)",
            smoothness=0,
            asymptotes=("0", "x"),
            kinks=((-2.0, -1.0),),
        ),
        modules=(ModuleForm(HardMish, NO_ARGUMENTS),),
        registered_by=REGISTERED_BY,
    ),
)
