"""How many channels an activation's input has: from the layer before it, or from a pass of a sample."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.numerics.channels import ChannelModule
from lit_gelu.errors import SwapError
from lit_gelu.surgery.observation import on_the_side, run
from lit_gelu.surgery.sites import ActivationSite, without_wrappers

Found = TypeVar("Found")

_COUNTS: tuple[tuple[type[nn.Module], Callable[[Any], int]], ...] = (
    (nn.Linear, lambda layer: int(layer.out_features)),
    (nn.Bilinear, lambda layer: int(layer.out_features)),
    (_ConvNd, lambda layer: int(layer.out_channels)),
    (_BatchNorm, lambda layer: int(layer.num_features)),
    (nn.GroupNorm, lambda layer: int(layer.num_channels)),
)


def infer_channels_(model: nn.Module, input_sample: Any = None) -> dict[str, int]:
    """Resolve every ``channels="infer"`` of a model in place: each activation gets one value for each channel.

    Without a sample, the number is that of the nearest ``Linear``, convolution, batch or group norm before the
    activation: among its siblings in the order in which the modules were registered, else among its parent's, and so
    on. A model whose ``forward`` goes another way, or reshapes in between, needs ``input_sample``; then the numbers are
    the sizes that the activations meet in one pass in evaluation mode, without gradients.

    Call it before the optimizer is built: the learned parameters are made here, on the device and in the dtype of the
    model's first parameter.

    Args:
        model: Any module; a compiled one is looked into.
        input_sample: A tensor, a tuple of ``forward``'s arguments, or a dict of them by name.

    Returns:
        From fully qualified name to number of channels, for those that were resolved.

    Raises:
        SwapError: If there is no such layer, two places of one activation do not agree, or the pass does not reach it.

    Example:
        >>> from lit_gelu import activations
        >>> activation = "swish(learnable=True, channels='infer')"
        >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), activations.create(activation), nn.Flatten())
        >>> infer_channels_(model)
        {'1': 16}
        >>> model[1].log_scale.shape
        torch.Size([16])
    """
    model = without_wrappers(model)
    places: dict[ChannelModule, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, ChannelModule) and module.needs_channels:
            places.setdefault(module, []).append(name)
    if input_sample is not None and places:
        _infer_by_pass(model, places, input_sample)
    else:
        for module, names in places.items():
            module.set_channels(channels_before(model, names), *_device_and_dtype(model))
    return {names[0]: int(module.channels or 0) for module, names in places.items()}


def channels_before(model: nn.Module, names: list[str]) -> int:
    """Return the number of channels of the nearest layer before an activation, which all its names agree on."""
    counts = {name: nearest_before(model, name, _count) for name in names}
    count = counts[names[0]]
    if count is None or len(set(counts.values())) > 1:
        counted = ", ".join(f"{number or 'none'} at {name!r}" for name, number in counts.items())
        raise SwapError(
            f"channels='infer': the nearest Linear, convolution, batch or group norm before has no one number of "
            f"channels ({counted}). Give an input_sample, or the activation its number, such as channels=64."
        )
    return count


def with_inferred_channels(
    spec: ActivationSpec, model: nn.Module, site: ActivationSite, registry: ActivationRegistry
) -> ActivationSpec:
    """Return a canonical spec that says ``channels="infer"`` with the number for a site."""
    # If a sample was run, the inputs that it showed count, else the layer before.
    shapes = [shape for call in site.calls or () for shape in call.inputs]
    dim = spec.arguments.get("channel_dim", registry.entry(spec.name).parameters["channel_dim"].default)
    counts = {shape[dim] for shape in shapes if -len(shape) <= dim < len(shape)}
    if shapes and len(counts) != 1:
        sizes = ", ".join(str(tuple(shape)) for shape in shapes)
        raise SwapError(
            f"channels='infer' at {site.name!r}: dimension {dim} of its inputs, {sizes}, is not one number. Give "
            "another channel_dim, or leave channels out."
        )
    number = counts.pop() if counts else channels_before(model, list(site.names))
    return ActivationSpec.of(spec.name, **{**spec.arguments, "channels": number})


def nearest_before(model: nn.Module, name: str, read: Callable[[nn.Module], Found | None]) -> Found | None:
    """Return what is wanted of the nearest module before a place that has it, in the order of registration."""
    # Of the place's siblings, else of its parent's, and so on, the last one's.
    place = name
    while place:
        parent_name, _, child = place.rpartition(".")
        parent = model.get_submodule(parent_name)
        if isinstance(parent, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)) and child == "activation":
            return read(parent.linear1)  # registered last, but called between its two linear layers
        siblings = list(parent.named_children())
        before = siblings[: [key for key, _ in siblings].index(child)] if child in dict(siblings) else siblings
        values = [each for _, sibling in before for layer in sibling.modules() if (each := read(layer)) is not None]
        if values:
            return values[-1]
        place = parent_name
    return None


def _count(layer: nn.Module) -> int | None:
    """Return the number of channels that a layer puts out, ``None`` if it is no layer of which that is known."""
    return next((count(layer) for kind, count in _COUNTS if isinstance(layer, kind)), None)


def _device_and_dtype(model: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    return (None, None) if first is None else (first.device, first.dtype)


def _infer_by_pass(model: nn.Module, places: dict[ChannelModule, list[str]], input_sample: Any) -> None:
    """Run a sample through the model; each activation takes the size that it meets, and has to be called."""
    device, dtype = _device_and_dtype(model)

    def take(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        (x,) = (*args, *kwargs.values())
        if isinstance(module, ChannelModule) and module.needs_channels and isinstance(x, Tensor):
            if not -x.dim() <= module.channel_dim < x.dim():
                raise SwapError(f"channel_dim={module.channel_dim} is no dimension of the input {tuple(x.shape)}.")
            module.set_channels(x.shape[module.channel_dim], device or x.device, dtype or x.dtype)

    with contextlib.ExitStack() as stack:
        for module in places:
            stack.callback(module.register_forward_pre_hook(take, with_kwargs=True).remove)
        with on_the_side(model):
            run(model, input_sample)
    if missed := [names[0] for module, names in places.items() if module.needs_channels]:
        raise SwapError(
            f"channels='infer' at {', '.join(map(repr, missed))}: the pass of input_sample did not call it. Give the "
            "number, such as channels=64."
        )
