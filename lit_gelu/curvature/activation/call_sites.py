"""Every activation of a model as something that can be watched: modules, calls of functions, one call of several."""

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.curvature.activation.input_layout import layout_before, layouts_in_a_pass, own_layout
from lit_gelu.curvature.activation.recorder import WatchedCall
from lit_gelu.errors import SwapError
from lit_gelu.surgery.changes import ProbedCall
from lit_gelu.surgery.places import CallPlace
from lit_gelu.surgery.rewriting import edited_class
from lit_gelu.surgery.sites import ActivationCall, ActivationSite, Survey, without_wrappers

# Said of nothing where there was a sample. Who gives the reason knows by which name a sample is given there.
_UNSAMPLED = "and calls are found only by running the model on a sample"


class InputProbe(nn.Module):
    """Returns its input; stands in front of a call, so that a hook sees what goes in."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input itself."""
        return x


@dataclass
class WatchableSites:
    """What of a model can be watched.

    Calls of functions are observed by a probe in front of them: the calling module's class is exchanged for one in
    which the argument ``x`` of that expression is written ``self.probe(x)``. What is computed stays to the last bit,
    compiled code included; parameters, ``state_dict`` and the module tree stay as they are. `remove` takes all back.
    """

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
    """Return the activations of a model, in the modules' order, with probes in front of those that are not modules.

    Activations that are not elementwise are left out; they are not among those refused. A module that is called from
    several places is one site, and each call of it another (``relu#0``, ``relu#1``, ...). A call that was swapped keeps
    the name that it had.

    Example:
        >>> from torch.nn import functional as F
        >>> from lit_gelu.activations import registry
        >>> class Block(nn.Module):
        ...     def forward(self, x):
        ...         return F.gelu(x)
        >>> sites = watchable_sites(nn.Sequential(Block(), nn.ReLU()), torch.zeros(1), registry=registry)
        >>> list(sites.calls)
        ['0:gelu', '1']
    """
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
                owner = call.seen.owner
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
    for name, site in modules.items():
        before = {layout_before(survey.model, each, lambda layer: id(layer) not in activations) for each in site.names}
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
    if all(call.seen.child and call.seen.owner is calls[0].seen.owner for call in calls):
        for turn, call in enumerate(calls):
            computed = _computed(site, registry)
            sites.calls[_name_of(call, site)] = WatchedCall(
                site.module, computed, (turn, len(calls)), mode_of=site.module
            )
        return []
    return [(_name_of(call, site), call) for call in calls]


def _name_of(call: ActivationCall, site: ActivationSite) -> str:
    """Return the name of a call; one that was swapped keeps the name that it had."""
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
    """Put probes in front of calls that one module makes."""
    edits: list[ProbedCall] = []
    probes: dict[str, tuple[str, WatchedCall]] = {}
    for name, call, module, site in rows:
        place = call.seen.place
        reason = _obstacle(owner, call, module, site, registry)
        if reason or not isinstance(place, CallPlace):
            sites.refused[name] = reason
            continue
        # A name that the module already has belongs to code that was edited further and goes on calling it.
        probe_names = (f"_lit_gelu_probe_{number}" for number in itertools.count())
        child = next(each for each in probe_names if each not in owner.__dict__ and each not in probes)
        edits.append(ProbedCall(place, child))
        activation = _computed(site, registry) if module is not None else registry.create(site.spec)
        probes[child] = name, WatchedCall(InputProbe(), activation, mode_of=owner if module is None else module)
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
    seen = call.seen
    if isinstance(owner, torch.jit.ScriptModule):
        return "its module is compiled by TorchScript"
    if not isinstance(seen.place, CallPlace):
        return seen.place
    if module is not None:
        return ""
    if len(seen.specs) != 1:
        return f"it computes different activations: {', '.join(map(str, seen.specs))}"
    spec = seen.specs[0]
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
