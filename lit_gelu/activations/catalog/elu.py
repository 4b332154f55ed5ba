"""ELU, SELU and CELU."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import INPLACE, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm, ReadAttributes
from lit_gelu.activations.functional.elu import SELU_ALPHA, SELU_SCALE
from lit_gelu.activations.info import ActivationFacts


def _elu_facts(alpha: float = 1.0, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        formula="x if x > 0 else alpha (exp(x) - 1)",
        reference="Clevert, Unterthiner and Hochreiter 2016, Exponential Linear Units (arXiv 1511.07289)",
        smoothness=1 if alpha == 1 else 0,
        asymptotes=(f"{-alpha}", "x"),
        kinks=() if alpha == 1 else ((0.0, 1.0 - alpha),),
    )


def _celu_facts(alpha: float = 1.0, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        formula="x if x > 0 else alpha (exp(x / alpha) - 1)",
        reference="Barron 2017, Continuously Differentiable Exponential Linear Units (arXiv 1704.07483)",
        smoothness=1,
        asymptotes=(f"{-alpha}", "x"),
    )


ENTRIES = (
    ActivationEntry(
        "elu",
        nn.ELU,
        function=functional.elu,
        derivative=functional.elu_derivative,
        facts=_elu_facts,
        modules=(ModuleForm(nn.ELU, ReadAttributes(("alpha", "inplace"))),),
        functions=((F.elu, ()), (F.elu_, ())),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "selu",
        nn.SELU,
        function=functional.selu,
        derivative=functional.selu_derivative,
        facts=ActivationFacts(
            formula="1.0507 x if x > 0 else 1.0507 1.6733 (exp(x) - 1)",
            reference="Klambauer et al. 2017, Self-Normalizing Neural Networks (arXiv 1706.02515)",
            smoothness=0,
            asymptotes=(f"{-SELU_ALPHA * SELU_SCALE}", f"{SELU_SCALE} x"),
            kinks=((0.0, SELU_SCALE * (1.0 - SELU_ALPHA)),),
        ),
        modules=(ModuleForm(nn.SELU, INPLACE),),
        functions=((torch.selu, ()), (torch.selu_, ()), (F.selu, ()), (F.selu_, ())),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "celu",
        nn.CELU,
        function=functional.celu,
        derivative=functional.celu_derivative,
        facts=_celu_facts,
        modules=(ModuleForm(nn.CELU, ReadAttributes(("alpha", "inplace"))),),
        functions=((torch.celu, ()), (torch.celu_, ()), (F.celu, ()), (F.celu_, ())),
        registered_by=REGISTERED_BY,
    ),
)
