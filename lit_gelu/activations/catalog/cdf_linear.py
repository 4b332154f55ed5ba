"""``x`` times a distribution function, whose cases have names of their own; the logistic one is SiLU."""

import functools
import math
from typing import Any

from torch import nn

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import HENDRYCKS_2016, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm, ReadAttributes
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.cdf_linear import CDFLinear
from lit_gelu.activations.spec import ActivationSpec

FORMULAS = {
    "normal": "x Phi(x)",
    "logistic": "x sigmoid(x)",
    "cauchy": "x (1/2 + atan(x) / pi)",
    "laplace": "x exp(x) / 2 if x < 0 else x - x exp(-x) / 2",
}


def _facts(distribution: Any = "normal", **_: Any) -> ActivationFacts:
    return ActivationFacts(
        FORMULAS.get(distribution, "x F(x)"),
        HENDRYCKS_2016,
        smoothness=2 if distribution == "laplace" else math.inf,
        asymptotes=("-1/pi", "x - 1/pi") if distribution == "cauchy" else ("0", "x"),
    )


def _case(name: str, distribution: str) -> ActivationEntry:
    """Make the row of a case's own name."""
    preset = ActivationSpec.of("cdf_linear", distribution=distribution)
    build = functools.partial(CDFLinear, distribution)  # bound by position, so that it is no argument any more
    return ActivationEntry(name, build, preset=preset, registered_by=REGISTERED_BY)


ENTRIES = (
    ActivationEntry(
        "cdf_linear",
        CDFLinear,
        function=functional.cdf_linear,
        derivative=functional.cdf_linear_derivative,
        facts=_facts,
        modules=(ModuleForm(CDFLinear, ReadAttributes(("distribution", "memory"))),),
        objects=("distribution",),
        registered_by=REGISTERED_BY,
    ),
    _case("cauchy_linear", "cauchy"),
    _case("laplace_linear", "laplace"),
    ActivationEntry("logistic", nn.SiLU, preset=ActivationSpec("silu"), registered_by=REGISTERED_BY),
)
