"""The activations of a model that can be watched, where their inputs have channels, and samples of whole rows.

Watched are modules, calls of functions, and single calls of a module. The layer in front of an activation tells where
the channels are. Samples are of whole rows, which hold every channel: strided elements of a [tokens, 1024] tensor fall
on as few as 8 of its channels when the stride is a multiple of 128.
"""

import itertools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.numerics.channels import ChannelModule
from lit_gelu.errors import SwapError
from lit_gelu.surgery.channels import nearest_before
from lit_gelu.surgery.class_edits import Edit, edited_class
from lit_gelu.surgery.observation import ActivationCall, on_the_side, run
from lit_gelu.surgery.sites import ActivationSite, Survey, without_wrappers
from lit_gelu.surgery.source import CallPlace


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
    """Return the number of rows of an activation's input; elements if it has one dimension or none."""
    # A row is one channel vector: ``x[i]`` of ``[N, C]``, ``x[i, t]`` of ``[N, T, C]``, and ``x[n, :, h, w]`` of
    # ``[N, C, H, W]`` and longer shapes. With the channels elsewhere, rows at random still represent all elements.
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
    """Return a copy of rows of an activation's input, ``[rows, C]``; of whole examples with their shape."""
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


@dataclass(frozen=True)
class WatchedCall:
    """A place where an activation is computed."""

    hooked: nn.Module  # whose input is the activation's
    activation: nn.Module  # what is computed there
    turn: tuple[int, int] | None = None  # (i, n): of the module's calls, only the i-th of n in turn count
    mode_of: nn.Module | None = None  # whose training flag tells an evaluation pass; by default the activation
    layout: ChannelLayout | None = None  # where its input has its channels, as far as is known


# Said of nothing where there was a sample. Who gives the reason knows by which name a sample is given there.
_UNSAMPLED = "and calls are found only by running the model on a sample"


@dataclass
class WatchableSites:
    """What of a model can be watched."""

    # A probe stands in front of calls of functions: the calling module's class is exchanged for one in which the
    # argument ``x`` of that expression is written ``self.probe(x)``. Nothing else of the model changes.

    calls: dict[str, WatchedCall] = field(default_factory=dict)  # by the site's name
    refused: dict[str, str] = field(default_factory=dict)  # sites that cannot be watched, and why
    gates: list[str] = field(default_factory=list)  # elementwise gates (tanh, sigmoid) that were not asked for
    _probed: list[tuple[nn.Module, type[nn.Module], type[nn.Module], tuple[str, ...]]] = field(default_factory=list)

    def remove(self) -> None:
        """Give every module its own class back; one that was changed further since keeps its probe, now idle."""
        for owner, before, probed, names in reversed(self._probed):
            if type(owner) is probed:
                owner.__class__ = before
                for name in names:
                    owner.__dict__.pop(name, None)
        self._probed.clear()


def watchable_sites(
    model: nn.Module,
    input_sample: object = None,
    *,
    registry: ActivationRegistry,
    accept: Callable[[str], bool] = lambda _: True,
    accept_gate: Callable[[str], bool] = lambda _: False,
) -> WatchableSites:
    """Return the activations of a model, in the modules' order, with probes in front of those that are not modules."""
    # A module that is called from several places is one site, and each call of it another (``relu#0``, ``relu#1``).
    sites = WatchableSites()
    survey = Survey(without_wrappers(model), input_sample, registry)
    edits: dict[int, tuple[nn.Module, list[tuple[str, ActivationCall, nn.Module | None, ActivationSite]]]] = {}
    order: list[str] = []
    for site in survey.sites:
        if not is_elementwise(site, registry):
            continue
        site_name = site.call or site.name
        names = dict.fromkeys([site_name, *(_name_of(call, site) for call in site.calls or ())])
        requested = {name for name in names if (accept if site.role == "activation" else accept_gate)(name)}
        order += [name for name in names if name in requested]
        if site.role == "gate" and not requested:
            sites.gates.append(site_name)
            continue
        if site.kind == "module" and site_name in requested:
            sites.calls[site_name] = WatchedCall(site.module, _computed(site, registry), mode_of=site.module)
        for name, call in _calls_to_probe(site, sites, registry):
            if name in requested:
                owner = call.owner
                module = site.module if site.kind == "module" else None
                edits.setdefault(id(owner), (owner, []))[1].append((name, call, module, site))
    for owner, rows in edits.values():
        _probe(owner, rows, sites, registry)
    sites.refused = {name: reason for name, reason in sites.refused.items() if name in order}
    for written in survey.written_calls():
        if accept(written.name):
            sites.refused[written.name] = f"it is a call of a function ({written.where}), {_UNSAMPLED}"
    sites.calls = {name: sites.calls[name] for name in order if name in sites.calls}
    _add_layouts(survey, input_sample, sites)
    return sites


def _add_layouts(survey: Survey, input_sample: object, sites: WatchableSites) -> None:
    """Find out where each input has its channels: from the layers that run before it, else from those registered."""
    param_layouts = {name: own_layout(call.activation) for name, call in sites.calls.items()}
    layouts = {name: layout for name, layout in param_layouts.items() if layout is not None}
    activations = {id(site.module) for site in survey.sites if site.kind == "module"}
    modules = {site.name: site for site in survey.sites if site.kind == "module" and site.name in sites.calls}

    def layout_of(layer: nn.Module) -> ChannelLayout | None:
        return None if id(layer) in activations else layout_of_layer(layer)

    for name, site in modules.items():
        before = {nearest_before(survey.model, each, layout_of) for each in site.names}
        if name not in layouts and len(before) == 1 and (layout := before.pop()) is not None:
            layouts[name] = layout
    if input_sample is not None:
        asked = {name: (call.hooked, call.turn) for name, call in sites.calls.items() if param_layouts[name] is None}
        layouts |= layouts_in_a_pass(survey.model, input_sample, asked, activations)
    sites.calls = {name: replace(call, layout=layouts.get(name)) for name, call in sites.calls.items()}


def is_elementwise(site: ActivationSite, registry: ActivationRegistry) -> bool:
    """Return whether f' is a number for each element; of what was never registered, it is taken to be."""
    if site.spec.opaque:
        return True
    return registry.entry(site.spec.name).facts_for(site.spec.arguments).elementwise


def _calls_to_probe(
    site: ActivationSite, sites: WatchableSites, registry: ActivationRegistry
) -> list[tuple[str, ActivationCall]]:
    """Return the calls of a site that need a probe; those of an ``nn.Sequential`` are told apart by their turn."""
    calls = site.calls or ()
    if site.kind != "module":
        if not calls and site.calls is None:
            sites.refused[site.name] = f"it is a function that a module holds, {_UNSAMPLED}"
        return [(_name_of(call, site), call) for call in calls]
    if len(calls) < 2:
        return []
    if all(call.child and call.owner is calls[0].owner for call in calls):
        for turn, call in enumerate(calls):
            computed = _computed(site, registry)
            sites.calls[_name_of(call, site)] = WatchedCall(
                site.module, computed, (turn, len(calls)), mode_of=site.module
            )
        return []
    return [(_name_of(call, site), call) for call in calls]


def _name_of(call: ActivationCall, site: ActivationSite) -> str:
    return call.name.replace(site.name, site.call, 1) if site.call else call.name


def _computed(site: ActivationSite, registry: ActivationRegistry) -> nn.Module:
    """Return the module of a site, or, of another library's class, the registered activation that it computes."""
    if site.spec.opaque or not registry.spec_of(site.module).opaque:
        return site.module
    return registry.create(site.spec)


def _probe(
    owner: nn.Module,
    rows: list[tuple[str, ActivationCall, nn.Module | None, ActivationSite]],
    sites: WatchableSites,
    registry: ActivationRegistry,
) -> None:
    edits: list[Edit] = []
    probes: dict[str, tuple[str, WatchedCall]] = {}
    for name, call, module, site in rows:
        place = call.place
        reason = _obstacle(owner, call, module, site, registry)
        if reason or not isinstance(place, CallPlace):
            sites.refused[name] = reason
            continue
        # A name that the module already has belongs to code that was edited further and goes on calling it.
        probe_names = (f"_lit_gelu_probe_{number}" for number in itertools.count())
        child = next(each for each in probe_names if each not in owner.__dict__ and each not in probes)
        edits.append(Edit(place, child, None))
        activation = _computed(site, registry) if module is not None else registry.create(site.spec)
        probes[child] = name, WatchedCall(nn.Identity(), activation, mode_of=owner if module is None else module)
    if not edits:
        return
    before = type(owner)
    try:
        probed = edited_class(before, tuple(edits))
        owner.__class__ = probed
    except (SwapError, TypeError) as reason:
        sites.refused |= {name: str(reason) for name, _ in probes.values()}
        return
    for child, (name, watched) in probes.items():
        owner.__dict__[child] = watched.hooked  # no child: names, parameters and copies of the model stay as they are
        sites.calls[name] = watched
    sites._probed.append((owner, before, probed, tuple(probes)))


def _obstacle(
    owner: nn.Module, call: ActivationCall, module: nn.Module | None, site: ActivationSite, registry: ActivationRegistry
) -> str:
    """Say why a call cannot be watched; empty if it can."""
    if isinstance(owner, torch.jit.ScriptModule):
        return "its module is compiled by TorchScript"
    if not isinstance(call.place, CallPlace):
        return call.place
    if module is not None:
        return ""
    if len(call.specs) != 1:
        return f"it computes different activations: {', '.join(map(str, call.specs))}"
    spec = call.specs[0]
    if spec.opaque or registry.entry(spec.name).facts_for(spec.arguments).learnable:
        return f"{site.spec} takes parameters that are arguments of the call"
    return ""


class ModuleTree:
    """Remembers which modules a model consists of, and says whether it still does."""

    # Asking again compares the children of every module by their identity, in loops that do not run in Python: it is
    # done at every measurement, when nothing of the model is in the caches.

    def __init__(self, model: nn.Module) -> None:
        # The modules themselves are kept, so that no other can come to have the identity of one that is gone.
        self._children = [module._modules for module in model.modules()]
        self._counts, self._listed = self._as_they_are()

    def is_unchanged(self) -> bool:
        """Return whether no module was replaced, added, removed or moved since."""
        counts, listed = self._as_they_are()
        return counts == self._counts and all(map(operator.is_, listed, self._listed))

    def _as_they_are(self) -> tuple[list[int], list[nn.Module | None]]:
        """Return how many children each module has, and all children one after the other."""
        return list(map(len, self._children)), list(itertools.chain.from_iterable(map(dict.values, self._children)))
