"""GELU with the mean and standard deviation of its normal distribution as arguments."""

from typing import Any

from torch import nn

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import HENDRYCKS_2016, REGISTERED_BY, channel_arguments, live_channels
from lit_gelu.activations.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.gaussian_gelu import GaussianGELU


def _read(module: nn.Module) -> dict[str, Any]:
    return {"mu": module.initial_mu, "sigma": module.initial_sigma, **channel_arguments(module)}


def _live(module: nn.Module) -> dict[str, Any]:
    return {"mu": module.mu, "sigma": module.sigma, **live_channels(module)}


def _facts(learnable: bool = False, **_: Any) -> ActivationFacts:
    return ActivationFacts(
        "x Phi((x - mu) / sigma)",
        HENDRYCKS_2016,
        smoothness=float("inf"),
        asymptotes=("0", "x"),
        learnable=learnable,
    )


ENTRIES = (
    ActivationEntry(
        "gaussian_gelu",
        GaussianGELU,
        function=functional.gaussian_gelu,
        derivative=functional.gaussian_gelu_derivative,
        facts=_facts,
        modules=(ModuleForm(GaussianGELU, _read, live=_live),),
        registered_by=REGISTERED_BY,
    ),
)
