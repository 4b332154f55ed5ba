"""Fused paths of torch that read a flag instead of the activation module, and so would compute the old activation."""

from collections.abc import Iterable, Mapping

from torch import nn

from lit_gelu.surgery.changes import Change, SetAttribute

_FLAG = "activation_relu_or_gelu"
_OFF, _RELU, _EXACT_GELU = 0, 1, 2


def follow(model: nn.Module, activations: Mapping[nn.Module, nn.Module]) -> list[Change]:
    """Return what must change in a model so that its fused paths follow new activations.

    In evaluation without gradients, ``nn.TransformerEncoderLayer`` computes everything in one kernel, in which the
    activation is what its flag says; and ``nn.TransformerEncoder`` passes nested tensors, which only that kernel takes.
    The kernel's GELU is the exact one, whatever ``nn.GELU.approximate`` says.

    Args:
        model: The model.
        activations: From encoder layers to their new activations.

    Returns:
        The changes.
    """
    flags = {layer: fused_flag(module) for layer, module in activations.items()}
    changes: list[Change] = [
        SetAttribute(layer, _FLAG, flag) for layer, flag in flags.items() if getattr(layer, _FLAG, flag) != flag
    ]
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and getattr(encoder, "use_nested_tensor", False):
            layers: Iterable[nn.Module] = encoder.layers
            if any(flags.get(layer) == _OFF for layer in layers):
                changes.append(SetAttribute(encoder, "use_nested_tensor", False))
    return changes


def encoder_layers(model: nn.Module, places: Iterable[tuple[Iterable[str], nn.Module]]) -> dict[nn.Module, nn.Module]:
    """Return the encoder layers among the parents of activations.

    Args:
        model: The model.
        places: The names under which activations stand, and the activations.

    Returns:
        From encoder layers to their activations.

    Example:
        >>> layer, relu = nn.TransformerEncoderLayer(4, 2, 8), nn.ReLU()
        >>> encoder_layers(nn.Sequential(layer), [(["0.activation"], relu)]) == {layer: relu}
        True
    """
    parents = [(name.rpartition("."), module) for names, module in places for name in names]
    found = [(model.get_submodule(parent), child, module) for (parent, _, child), module in parents]
    return {
        parent: module
        for parent, child, module in found
        if isinstance(parent, nn.TransformerEncoderLayer) and child == "activation"
    }


def fused_flag(activation: nn.Module) -> int:
    """Return what the flag of an encoder layer is to be for an activation.

    Args:
        activation: The module.

    Returns:
        1 for ReLU, 2 for exact GELU, 0 to switch the fused path off.

    Example:
        >>> fused_flag(nn.ReLU()), fused_flag(nn.GELU()), fused_flag(nn.GELU(approximate="tanh"))
        (1, 2, 0)
    """
    if type(activation) is nn.GELU:
        return _EXACT_GELU if activation.approximate == "none" else _OFF
    return _RELU if type(activation) is nn.ReLU else _OFF
