"""GELU: exact, and the paper's two approximations, which have names of their own as well."""

import functools
from typing import Any

from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import HENDRYCKS_2016, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm, ReadAttributes
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.gelu import SigmoidGELU
from lit_gelu.activations.spec import ActivationSpec

FORMULAS = {
    "none": "x Phi(x)",
    "tanh": "0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))",
    "sigmoid": "x sigmoid(1.702 x)",
}


def build_gelu(approximate: str = "none", memory: str = "autograd") -> nn.Module:
    """Build the module of one of GELU's three forms.

    Args:
        approximate: ``"none"`` for ``x Phi(x)``, ``"tanh"`` or ``"sigmoid"`` for the paper's approximations.
        memory: ``"recompute"`` has the sigmoid form keep its input alone for the backward pass.

    Returns:
        ``torch.nn.GELU`` for the first two, `SigmoidGELU` for the third.

    Raises:
        ActivationArgumentError: If there is no such form, or ``memory`` is not ``"autograd"`` for another form.

    Example:
        >>> build_gelu("tanh")
        GELU(approximate='tanh')
    """
    if approximate not in FORMULAS:
        raise ActivationArgumentError(
            f"'gelu': approximate={approximate!r} is not accepted. Accepted: {', '.join(map(repr, FORMULAS))}."
        )
    if approximate != "sigmoid" and memory != "autograd":
        raise ActivationArgumentError(
            f"'gelu': memory={memory!r} is not accepted with approximate={approximate!r}: torch's kernel keeps its "
            "input alone already. Leave memory out."
        )
    return SigmoidGELU(memory) if approximate == "sigmoid" else nn.GELU(approximate=approximate)


def _facts(approximate: str = "none", **_: Any) -> ActivationFacts:
    return ActivationFacts(FORMULAS[approximate], HENDRYCKS_2016, smoothness=float("inf"), asymptotes=("0", "x"))


def _sigmoid_form(module: nn.Module) -> dict[str, Any]:
    return {"approximate": "sigmoid", "memory": module.memory}


def _preset(name: str, approximate: str, aliases: tuple[str, ...]) -> ActivationEntry:
    """Make the row of a form's own name."""
    preset = ActivationSpec.of("gelu", approximate=approximate)
    # Bound by position, so that it is no argument any more; the sigmoid form alone is left its memory mode.
    bound = (approximate,) if approximate == "sigmoid" else (approximate, "autograd")
    build = functools.partial(build_gelu, *bound)
    return ActivationEntry(name, build, aliases=aliases, preset=preset, registered_by=REGISTERED_BY)


ENTRIES = (
    ActivationEntry(
        "gelu",
        build_gelu,
        function=functional.gelu,
        derivative=functional.gelu_derivative,
        facts=_facts,
        aliases=("gelu_exact", "gelu_python"),
        modules=(ModuleForm(nn.GELU, ReadAttributes(("approximate",))), ModuleForm(SigmoidGELU, _sigmoid_form)),
        functions=((F.gelu, ()),),
        registered_by=REGISTERED_BY,
    ),
    _preset("gelu_tanh", "tanh", ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh")),
    _preset("gelu_sigmoid", "sigmoid", ("quick_gelu",)),
)
