"""Activation modules that other libraries define for themselves, and what they are in the registry's words."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.recipes import opaque_spec

_ARGUMENTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "clipped_gelu": lambda module: {"min": float(module.min), "max": float(module.max)},
    "prelu": lambda module: {"num_parameters": module.num_parameters},
}
_OPAQUE = frozenset({"transformers.activations.XIELUActivation"})  # no spec can hold its parameters

# From the class's path to a name of the registry; the libraries themselves are not imported.
_NAMES: Mapping[str, str] = {
    **{
        f"transformers.activations.{cls}": name
        for cls, name in {
            "AccurateGELUActivation": "gelu_tanh",
            "ClippedGELUActivation": "clipped_gelu",
            "FastGELUActivation": "gelu_tanh",
            "GELUActivation": "gelu",
            "GELUTanh": "gelu_tanh",
            "LaplaceActivation": "mega_laplace",
            "LinearActivation": "identity",
            "MishActivation": "mish",
            "NewGELUActivation": "gelu_tanh",
            "QuickGELUActivation": "gelu_sigmoid",
            "ReLUSquaredActivation": "relu2",
            "SiLUActivation": "silu",
            "SqrtSoftplusActivation": "sqrt_softplus",
        }.items()
    },
    **{
        f"timm.layers.activations.{cls}": name
        for cls, name in {
            "GELU": "gelu",
            "GELUTanh": "gelu_tanh",
            "HardMish": "hard_mish",
            "HardSigmoid": "hard_sigmoid",
            "HardSwish": "hard_swish",
            "Mish": "mish",
            "PReLU": "prelu",
            "QuickGELU": "gelu_sigmoid",
            "Sigmoid": "sigmoid",
            "Swish": "silu",
            "Tanh": "tanh",
        }.items()
    },
    **{
        f"timm.layers.activations_me.{cls}": name
        for cls, name in {
            "HardMishMe": "hard_mish",
            "HardSigmoidMe": "hard_sigmoid",
            "HardSwishMe": "hard_swish",
            "MishMe": "mish",
            "SwishMe": "silu",
        }.items()
    },
    "clip.model.QuickGELU": "gelu_sigmoid",
    "open_clip.transformer.QuickGELU": "gelu_sigmoid",
}


def foreign_spec(module: nn.Module, registry: ActivationRegistry) -> ActivationSpec | None:
    """Return the spec of an activation module of transformers, timm or CLIP.

    What it computes is the spec's function, to the rounding of another order of operations; that of ``transformers``'
    XIELU is opaque.

    Args:
        module: Any module.
        registry: Where the names are looked up.

    Returns:
        The canonical spec, ``None`` if it is no such module, or the registry lacks the activation.
    """
    path = f"{type(module).__module__}.{type(module).__qualname__}"
    if path in _OPAQUE:
        return opaque_spec(module)
    name = _NAMES.get(path)
    if name is None or name not in registry:
        return None
    read = _ARGUMENTS.get(name)
    return registry.resolve(ActivationSpec.of(name, **(read(module) if read else {})))
