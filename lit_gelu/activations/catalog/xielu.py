"""xIELU."""

from typing import Any

from torch import nn

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.xielu import XIELU


def _read(module: nn.Module) -> dict[str, Any]:
    return {
        "alpha_p": module.initial_alpha_p,
        "alpha_n": module.initial_alpha_n,
        "beta": module.beta,
        "learnable": module.learnable,
    }


def _live(module: nn.Module) -> dict[str, Any]:
    return {"alpha_p": module.alpha_p, "alpha_n": module.alpha_n, "beta": module.beta}


def _facts(alpha_p: float = 0.8, alpha_n: float = 0.8, beta: float = 0.5, learnable: bool = True) -> ActivationFacts:
    return ActivationFacts(
        "alpha_p x^2 + beta x if x > 0 else alpha_n (exp(x) - 1 - x) + beta x",
        "Huang and Schlag 2024, Deriving Activation Functions Using Integration (arXiv 2411.13010)",
        smoothness=2 if alpha_n == 2 * alpha_p else 1,
        asymptotes=(f"{beta - alpha_n:g} x - {alpha_n:g}", f"{alpha_p:g} x^2"),
        learnable=learnable,
    )


ENTRIES = (
    ActivationEntry(
        "xielu",
        XIELU,
        function=functional.xielu,
        derivative=functional.xielu_derivative,
        facts=_facts,
        modules=(ModuleForm(XIELU, _read, live=_live),),
        registered_by=REGISTERED_BY,
    ),
)
