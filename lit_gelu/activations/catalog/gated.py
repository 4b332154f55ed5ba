"""Gated linear units: they halve a dimension, so they have no derivative of one number and stand at no site."""

import functools
import math
from typing import Any

from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm, ReadAttributes
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.gated import GEGLU, ReGLU, SwiGLU

SHAZEER_2020 = "Shazeer 2020, GLU Variants Improve Transformer (arXiv 2002.05202)"


def _facts(formula: str, reference: str = SHAZEER_2020, smoothness: float = math.inf, **_: Any) -> ActivationFacts:
    return ActivationFacts(formula, reference, smoothness=smoothness, elementwise=False, halves=True)


ENTRIES = (
    ActivationEntry(
        "glu",
        nn.GLU,
        function=functional.glu,
        facts=_facts(
            "a sigmoid(b), with a the first half and b the second",
            "Dauphin et al. 2017, Language Modeling with Gated Convolutional Networks (arXiv 1612.08083)",
        ),
        modules=(ModuleForm(nn.GLU, ReadAttributes(("dim",))),),
        functions=((F.glu, ()),),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "reglu",
        ReGLU,
        function=functional.reglu,
        facts=_facts("max(a, 0) b, with a the first half and b the second", smoothness=0),
        modules=(ModuleForm(ReGLU, ReadAttributes(("dim", "memory"))),),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "geglu",
        GEGLU,
        function=functional.geglu,
        facts=functools.partial(_facts, "gelu(a) b, with a the first half and b the second"),
        modules=(ModuleForm(GEGLU, ReadAttributes(("dim", "approximate", "memory"))),),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "swiglu",
        SwiGLU,
        function=functional.swiglu,
        facts=functools.partial(_facts, "a sigmoid(beta a) b, with a the first half and b the second"),
        modules=(ModuleForm(SwiGLU, ReadAttributes(("dim", "beta", "memory"))),),
        registered_by=REGISTERED_BY,
    ),
)
