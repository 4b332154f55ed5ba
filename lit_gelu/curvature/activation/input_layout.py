"""How an activation's input lies in memory: which dimension counts its channels, and what its rows are.

The layer in front of an activation tells where the channels are. Samples are of whole rows, which hold every channel:
strided elements of a [tokens, 1024] tensor fall on as few as 8 of its channels when the stride is a multiple of 128.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

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
        dims = [dim for dim in range(1, len(shape)) if shape[dim] == self.count]
        if len(dims) == 1:
            return dims[0]
        layer_dim = None if self.dim is None else self.dim % max(len(shape), 1)
        return layer_dim if layer_dim in dims else None


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
        has_count = isinstance(activation.channels, int)  # neither None nor still to be inferred
        return ChannelLayout(int(activation.channels or 0), activation.channel_dim) if has_count else None
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
    # `watched`: the module whose input it is, and which of its calls count; `activations`: ids of modules that are no
    # layers.
    layouts_of: dict[str, set[ChannelLayout | None]] = {name: set() for name in watched}
    calls = dict.fromkeys(watched, 0)
    last: list[tuple[ChannelLayout, torch.Size]] = []

    def note_output(layout: ChannelLayout, *arguments: Any) -> None:
        if isinstance(arguments[-1], Tensor):
            last[:] = [(layout, arguments[-1].shape)]

    def note_input(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        number, turn = calls[name], watched[name][1]
        calls[name] += 1
        x = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(x, Tensor) and (turn is None or number % turn[1] == turn[0]):
            # Of a reshaped or turned output the number of channels is known, and no longer where they are.
            outputs = [layout if shape == x.shape else replace(layout, dim=None) for layout, shape in last]
            layouts_of[name].add(outputs[0] if outputs else None)

    others = {*activations, *(id(module) for module, _ in watched.values())}
    with ExitStack() as stack:
        for layer in model.modules():
            layout = None if id(layer) in others or next(layer.children(), None) is not None else layout_of_layer(layer)
            if layout is not None:
                stack.callback(layer.register_forward_hook(partial(note_output, layout)).remove)
        for name, (module, _) in watched.items():
            handle = module.register_forward_pre_hook(partial(note_input, name), with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(on_the_side(model))
        try:
            run(model, input_sample)
        except SwapError:  # it fails in evaluation: what is known of the modules must do
            return {}
    return {name: only for name, layouts in layouts_of.items() if len(layouts) == 1 and (only := next(iter(layouts)))}


SampleRows = int | Literal["auto", "sparse"] | None


def count_rows(x: Tensor, *, whole_examples: bool = False, channels: int | None = None) -> int:
    """Return the number of rows of an activation's input; elements if it has one dimension or none.

    A row is one channel vector: ``x[i]`` of ``[N, C]``, ``x[i, t]`` of ``[N, T, C]``, and ``x[n, :, h, w]`` of the
    convolutional ``[N, C, H, W]`` (all shapes of four and more dimensions), unless ``channels``
    gives the dimension of the channels, or ``whole_examples`` makes every ``x[i]`` a row. In a
    layout with the channels elsewhere a row is another slice; drawn at random, it still represents all elements evenly.

    Example:
        >>> count_rows(torch.zeros(32, 16, 8, 8)), count_rows(torch.zeros(32, 16, 8, 8), whole_examples=True)
        (2048, 32)
    """
    shape = tuple(x.shape)
    if whole_examples or len(shape) < 2:
        return math.prod(shape[:1])
    dim = _dim_of_rows(len(shape), channels)
    return math.prod((*shape[:dim], *shape[dim + 1 :]))


def spread_rows(count: int, position: Tensor) -> Tensor:
    """Turn positions, uniform in ``[i, i + 1)``, into rising row numbers: one of each equal stretch of rows."""
    # Each row is expected equally often, so means over the rows are unbiased; and the stretches spread the sample over
    # the whole batch, which independent draws do not.
    return (position * (count / len(position))).long().clamp_(max=count - 1)


def rows_for(x: Tensor, elements: int, *, whole_examples: bool = False, channels: int | None = None) -> int:
    """Return how many rows hold about so many elements; at least 8: no channel is judged by a single element."""
    width = x.numel() // max(1, count_rows(x, whole_examples=whole_examples, channels=channels))
    return max(8, elements // max(1, width))


def take_rows(x: Tensor, index: Tensor, *, whole_examples: bool = False, channels: int | None = None) -> Tensor:
    """Return a copy of rows of an activation's input, ``[rows, C]``; of whole examples with their shape.

    Example:
        >>> x = torch.arange(2 * 3 * 1 * 2.0).reshape(2, 3, 1, 2)
        >>> take_rows(x, torch.tensor([1, 2]))
        tensor([[ 1.,  3.,  5.],
                [ 6.,  8., 10.]])
    """
    dims = x.dim()
    if dims == 0:
        return x.expand(index.shape).clone()
    if dims <= 2 or whole_examples:
        return x.index_select(0, index)
    dim = _dim_of_rows(dims, channels)
    if dim == dims - 1 and x.is_contiguous():
        return x.view(-1, x.shape[-1]).index_select(0, index)
    x = x.movedim(dim, -1)
    parts: list[Tensor] = []  # one index a dimension, by arithmetic: `torch.unravel_index` copies from the host
    for size in reversed(x.shape[1:-1]):
        parts.append(index % size)
        index = index.div(size, rounding_mode="floor")
    return x[(index, *reversed(parts))]


def _dim_of_rows(dims: int, channels: int | None) -> int:
    """Return the dimension along which a row lies."""
    if channels is not None and dims > 2:
        return channels
    return 1 if dims >= 4 else dims - 1
