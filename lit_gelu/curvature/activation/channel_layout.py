"""Which dimension of an activation's input counts its channels: the layer in front of it tells."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from lit_gelu.activations.numerics.channels import ChannelModule
from lit_gelu.errors import SwapError
from lit_gelu.surgery.channels import nearest_before
from lit_gelu.surgery.observation import on_the_side, run


@dataclass(frozen=True)
class ChannelLayout:
    """What a layer says of the channels of its output."""

    count: int  # how many there are
    dim: int | None = None  # where the layer puts them, from the front or from the back; ``None`` if that is not known

    def dim_of(self, shape: Sequence[int]) -> int | None:
        """Return the only dimension of this size; of several the layer's own; ``None`` if it cannot be told."""
        found = [dim for dim in range(1, len(shape)) if shape[dim] == self.count]
        if len(found) == 1:
            return found[0]
        own = None if self.dim is None else self.dim % max(len(shape), 1)
        return own if own in found else None


def dim_of_channels(layout: ChannelLayout | None, shape: Sequence[int]) -> int | None:
    """Return the dimension of an input that counts the channels: of two the last, else that of the layout."""
    if len(shape) == 2:
        return 1
    return None if layout is None else layout.dim_of(shape)


def layout_of_layer(layer: nn.Module) -> ChannelLayout | None:
    """Return what a layer without children says of the channels of its output; ``None`` if it has no parameters."""
    # Of an unknown class: the number that its bias or weight has, if it has one dimension.
    match layer:
        case nn.Linear() | nn.Bilinear():
            return ChannelLayout(int(layer.out_features), -1)
        case _ConvNd():
            return ChannelLayout(int(layer.out_channels), 1)
        case _BatchNorm() | _InstanceNorm():
            return ChannelLayout(int(layer.num_features), 1)
        case nn.GroupNorm():
            return ChannelLayout(int(layer.num_channels), 1)
        case nn.LayerNorm() | nn.RMSNorm() if len(layer.normalized_shape) != 1:
            return None
    last = -1 if type(layer) in {nn.LayerNorm, nn.RMSNorm} else None  # others of these names turn the input before
    tensors = (getattr(layer, "bias", None), getattr(layer, "weight", None))
    sizes = [len(each) for each in tensors if isinstance(each, Tensor) and each.dim() == 1]
    return ChannelLayout(sizes[0], last) if sizes else None


def own_layout(activation: nn.Module) -> ChannelLayout | None:
    """Return the layout of an activation with parameters of its own for each channel."""
    if isinstance(activation, ChannelModule):
        known = isinstance(activation.channels, int)  # neither None nor still to be inferred
        return ChannelLayout(int(activation.channels or 0), activation.channel_dim) if known else None
    if isinstance(activation, nn.PReLU) and activation.num_parameters > 1:
        return ChannelLayout(int(activation.num_parameters), 1)
    return None


def layout_before(model: nn.Module, name: str, is_layer: Callable[[nn.Module], bool]) -> ChannelLayout | None:
    """Return what the nearest layer before a module says, in the order in which modules were registered."""
    return nearest_before(model, name, lambda layer: layout_of_layer(layer) if is_layer(layer) else None)


def layouts_in_a_pass(
    model: nn.Module,
    input_sample: Any,
    watched: Mapping[str, tuple[nn.Module, tuple[int, int] | None]],
    activations: Collection[int] = (),
) -> dict[str, ChannelLayout]:
    """Run a sample, and return what the layer that ran last before each input says; none where layers disagree."""
    # `watched`: the module whose input it is, and which of its calls count; `activations`: ids of what is no layer.
    found: dict[str, set[ChannelLayout | None]] = {name: set() for name in watched}
    with _noting(model, watched, activations, found), on_the_side(model):
        try:
            run(model, input_sample)
        except SwapError:  # it fails in evaluation: what is known of the modules must do
            return {}
    return {name: only for name, layouts in found.items() if len(layouts) == 1 and (only := next(iter(layouts)))}


@contextmanager
def _noting(
    model: nn.Module,
    watched: Mapping[str, tuple[nn.Module, tuple[int, int] | None]],
    activations: Collection[int],
    found: dict[str, set[ChannelLayout | None]],
) -> Iterator[None]:
    """Note, while a model runs, what the last layer said as each watched module is called."""
    last: list[tuple[ChannelLayout, torch.Size]] = []
    handles = []
    others = {*activations, *(id(module) for module, _ in watched.values())}
    for layer in model.modules():
        layout = None if id(layer) in others or next(layer.children(), None) is not None else layout_of_layer(layer)
        if layout is not None:
            handles.append(layer.register_forward_hook(_note_output(layout, last)))
    for name, (module, turn) in watched.items():
        handles.append(module.register_forward_pre_hook(_note_input(found[name], turn, last), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note_output(layout: ChannelLayout, last: list[tuple[ChannelLayout, torch.Size]]) -> Callable[..., None]:
    def hook(*arguments: Any) -> None:
        output = arguments[-1]
        if isinstance(output, Tensor):
            last[:] = [(layout, output.shape)]

    return hook


def _note_input(
    found: set[ChannelLayout | None], turn: tuple[int, int] | None, last: list[tuple[ChannelLayout, torch.Size]]
) -> Callable[..., None]:
    calls = 0

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal calls
        number, calls = calls, calls + 1
        x = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(x, Tensor) or (turn is not None and number % turn[1] != turn[0]):
            return
        for layout, shape in last:
            # Of a reshaped or turned output the number of channels is known, and no longer where they are.
            found.add(layout if shape == x.shape else replace(layout, dim=None))
        if not last:
            found.add(None)

    return hook
