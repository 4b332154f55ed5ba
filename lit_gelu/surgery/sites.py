"""Where a model has activations: modules, functions that modules hold, and, with a sample, calls of functions.

Which modules count: those of registered classes, and those that other libraries define for the same functions.
"""

import functools
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.naming.entry import FunctionActivation, opaque_spec
from lit_gelu.display import Displayed, count_of
from lit_gelu.errors import SwapError
from lit_gelu.surgery.class_edits import EDITS
from lit_gelu.surgery.observation import ActivationCall, CallWatcher, FunctionTable, KnownFunction
from lit_gelu.surgery.source import WrittenCall, written_calls

Role = Literal["activation", "gate"]
Kind = Literal["module", "attribute", "call"]
_ROLES: tuple[Role, Role] = ("activation", "gate")  # by whether it is a gate


@dataclass(frozen=True, repr=False)
class ActivationSite(Displayed):
    """A place of a model where an activation is computed.

    Args:
        name: Of a module, its fully qualified name; empty for the model itself. Of a function that a module holds as
            an attribute, the attribute's. Of a call of a function or of a tensor's method, the calling module's name, a
            colon, the activation's name, and, if the module has several such calls, ``#0``, ``#1``, ... in the order in
            which they are first reached: ``"blocks.0.mlp:gelu"``, ``":relu#1"``.
        module: The activation module; for an attribute or a call, the module that holds it or makes it.
        spec: Its canonical spec.
        role: ``"gate"`` for a sigmoid, a hard sigmoid, tanh and the registry's other gates, which mostly gate another
            value; such a site is swapped only if it is named in full, by its class or by its activation.
        aliases: The other fully qualified names, if the module stands in several places.
        kind: ``"module"``, ``"attribute"`` or ``"call"``.
        calls: From where it is called and how often; ``None`` if no ``input_sample`` was run, empty if the sample does
            not reach it. Each call of a module that is called from several places may be swapped by itself, by the
            name in it: ``"layer1.0.relu#1"``.
        call: For the module that `lit_gelu.surgery.swap` put in the place of a call, the name that the call had.
    """

    name: str
    module: nn.Module
    spec: ActivationSpec
    role: Role
    aliases: tuple[str, ...] = ()
    kind: Kind = "module"
    calls: tuple[ActivationCall, ...] | None = None
    call: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All fully qualified names."""
        return (self.name, *self.aliases)

    def _summary(self) -> str:
        gate = ", gate" if self.role == "gate" else ""
        calls = "" if self.calls is None else f", {count_of(sum(call.count for call in self.calls), 'call')}"
        return f"{self.name!r}, {self.spec}, {self.kind} of {type(self.module).__name__}{gate}{calls}"


def relative_name(name: str, base: str) -> str:
    """Return the name of a site relative to a module: the rest after one ``^`` for every level outside of it."""
    # It stays right when the model becomes a part of another: ("blocks.0:gelu", "blocks.0") gives ":gelu", and
    # ("a.act#1", "b.mlp") gives "^^a.act#1".
    path, tail = _split(name)
    base_parts = _parts(base)
    common = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(path, base_parts, strict=False))])
    return "^" * (len(base_parts) - common) + ".".join(path[common:]) + tail


def absolute_name(relative: str, base: str) -> str:
    """Return the name in the model of what `relative_name` named, where the module is called ``base`` now."""
    rest = relative.lstrip("^")
    base_parts = _parts(base)
    path, tail = _split(rest)
    return ".".join([*base_parts[: max(0, len(base_parts) - (len(relative) - len(rest)))], *path]) + tail


def names_for_patterns(name: str) -> tuple[str, ...]:
    """Return what a pattern may call a site: its name; of one of several calls of a function, that without number too.

    Example:
        >>> names_for_patterns("blocks.0:gelu#1")
        ('blocks.0:gelu#1', 'blocks.0:gelu')
    """
    unnumbered, number, _ = name.partition("#")
    return (name, unnumbered) if number and ":" in unnumbered else (name,)


def _parts(path: str) -> list[str]:
    return path.split(".") if path else []


def _split(name: str) -> tuple[list[str], str]:
    """Return the parts of a site's path, and what names a call behind it."""
    path = re.split(r"[:#]", name, maxsplit=1)[0]
    return _parts(path), name[len(path) :]


def find_sites(
    model: nn.Module, input_sample: Any = None, *, registry: ActivationRegistry | None = None
) -> list[ActivationSite]:
    """Return the activations of a model, in the order of its modules.

    *Modules* count if their class is registered, or is one that transformers, timm or CLIP define for an activation
    that is; ``torch.nn.Identity`` and gated units such as ``torch.nn.GLU``, which halve their input, do not. A module
    that stands in several places is listed once, with its other names; one that an attribute of its name hides, as in
    the decoder layers of ``torch.nn.Transformer(activation=torch.nn.GELU())``, is never called and not listed.
    *Attributes* of a module that hold such a function, as ``torch.nn.TransformerEncoderLayer`` does, are listed too.

    *Calls* are found by a pass of ``input_sample`` in evaluation mode and one in training mode, without gradients,
    after which modes, buffers and random number generators are as before: calls of functions (``F.gelu(x)``,
    ``torch.relu(x)``), of tensors' methods (``x.relu()``, ``x.relu_()``) and of activation modules that are no part of
    the model, such as the ``gelu`` of ``transformers.activations``; and for every module from where it is called. One
    expression is one call, however often a loop reaches it. A model that takes no such sample in training mode is
    surveyed in evaluation alone; `coverage` and a swap's report say so. What is written out in other operations
    (``x * (x > 0)``, ``x.clamp(min=0)``) is not seen, nor what TorchScript has compiled.

    Args:
        model: Any module; one that is compiled or set up by Lightning's Fabric is looked into.
        input_sample: A tensor, a tuple of ``forward``'s arguments, or a dict of them by name.
        registry: Says what an activation is; by default `lit_gelu.activations.registry`.

    Raises:
        SwapError: If ``model`` is no module, or ``forward`` fails on the sample.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Sigmoid())
        >>> [(site.name, str(site.spec), site.role) for site in find_sites(model)]
        [('1', 'relu', 'activation'), ('3', 'sigmoid', 'gate')]
        >>> class MLP(nn.Module):
        ...     def forward(self, x):
        ...         return nn.functional.gelu(x, approximate="tanh")
        >>> import torch
        >>> [(site.name, str(site.spec)) for site in find_sites(nn.Sequential(MLP()), torch.zeros(1))]
        [('0:gelu', "gelu(approximate='tanh')")]
    """
    if not isinstance(model, nn.Module):
        raise SwapError(f"find_sites takes a torch.nn.Module, not {type(model).__name__}.")
    return Survey(without_wrappers(model), input_sample, registry or activations.registry).sites


def without_wrappers(model: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of ``torch.compile`` and of Lightning's ``Fabric.setup``, or itself."""
    # Both would put a prefix before every name.
    name = "_original_module" if type(model).__name__ == "_FabricModule" else "_orig_mod"
    held = dict(model._modules.items()).get(name)  # not getattr: a module may answer for one that it holds
    return model if held is None else without_wrappers(held)


class Survey:
    """All that is known of a model's sites, and of the pass that found them."""

    def __init__(self, model: nn.Module, input_sample: Any, registry: ActivationRegistry) -> None:
        self.model = model
        self.registry = registry
        self.table = FunctionTable(registry)  # which functions count
        self._names: dict[int, list[str]] = {}
        self._specs: dict[int, ActivationSpec] = {}
        self._held_functions: dict[int, dict[str, tuple[KnownFunction, ActivationSpec]]] = {}
        self._swapped_calls: dict[int, str] = {}
        modules = self._modules = dict[int, nn.Module]()
        for name, module in model.named_modules(remove_duplicate=False):
            self._names.setdefault(id(module), []).append(name)
            modules[id(module)] = module
        self._recognize(modules)
        self.seen: CallWatcher | None = None  # what the pass saw; ``None`` without a sample
        if input_sample is not None:
            spec_of = functools.partial(activation_spec, registry=registry)
            self.seen = CallWatcher(model, self.table, self._specs.keys(), self._held_functions, spec_of)
            self.seen.observe(input_sample)
        callers = {id(call.owner) for call in self.seen.functions.values()} if self.seen else set()
        self.sites: list[ActivationSite] = []  # the sites, in the order of the modules
        for key, module in modules.items():
            if key in self._specs:
                spec, names = self._specs[key], self.names_of(module)
                seen = None if self.seen is None else list(self.seen.modules.get(key, {}).values())
                calls = None if seen is None else self._numbered(names[0], seen)
                role, call = _ROLES[is_gate(spec, registry)], self._swapped_calls.get(key, "")
                self.sites.append(ActivationSite(names[0], module, spec, role, tuple(names[1:]), "module", calls, call))
                continue
            if key in self._held_functions:
                self.sites += self._attribute_sites(module)
            if key in callers:
                self.sites += self._call_sites(module)

    def _recognize(self, modules: dict[int, nn.Module]) -> None:
        """Find the modules that are activations, the functions that the others hold, and what was swapped before."""
        hidden = hidden_modules(self.model)
        others: set[type[nn.Module]] = set()  # classes of no activation, which are looked up once: most modules' are
        parts: set[int] = set()  # of activations
        for key, module in modules.items():
            if key in parts:
                continue
            spec = None if key in hidden or type(module) in others else activation_spec(module, self.registry)
            if spec is not None:
                self._specs[key] = spec
                parts.update(map(id, module.modules()))
            elif key not in hidden and type(module) not in others and self.registry.entry_of(module) is None:
                others.add(type(module))
            for name, value in vars(module).items() if spec is None else ():
                held = self.table.find_held(value) if callable(value) else None
                if held is not None:
                    row = held[0], self.table.spec(held[0], (None,), held[1])
                    self._held_functions.setdefault(key, {})[name] = row
            for edit in (edit for cls in type(module).__mro__ for edit in vars(cls).get(EDITS, ())):
                # Else the child is a site of its own, such as a function that was held.
                if edit.name is not None and edit.name != edit.child:
                    name = absolute_name(edit.name, self._names[key][0])
                    self._swapped_calls[id(getattr(module, edit.child))] = name

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the model may have activations that are not seen, in sentences."""
        if self.seen is None or not self.seen.training_error:
            return ()
        error = self.seen.training_error
        return (f"What runs in training alone is not known: the sample fails in training mode ({error}).",)

    def written_calls(self) -> list[WrittenCall]:
        """Return the calls of functions that stand in the code and are no sites, as no sample was run to find them."""
        if self.seen is not None:
            return []
        inside = {id(part) for key, module in self._modules.items() if key in self._specs for part in module.modules()}
        others = [module for key, module in self._modules.items() if key not in inside]

        def name_of(function: Any) -> str | None:
            row = self.table.find(function)
            return None if row is None or row.facts.gate else row.name

        read = {kind: written_calls(kind, name_of) for kind in dict.fromkeys(map(type, others))}
        return [replace(call, module=self.names_of(module)[0]) for module in others for call in read[type(module)]]

    def names_of(self, module: nn.Module) -> list[str]:
        """Return all fully qualified names of a module of the model."""
        return self._names[id(module)]

    def spec_of_held(self, site: ActivationSite) -> ActivationSpec:
        """Return the spec of a function that a module holds, without what its calls add."""
        return self._held_functions[id(site.module)][site.name.rpartition(".")[2]][1]

    def _attribute_sites(self, module: nn.Module) -> list[ActivationSite]:
        sites = []
        for attribute, (function, spec) in self._held_functions[id(module)].items():
            names = [f"{name}.{attribute}".removeprefix(".") for name in self.names_of(module)]
            calls = None
            if self.seen is not None:
                through = [c for c in self.seen.functions.values() if c.holder is module and c.held == attribute]
                calls = self._numbered(names[0], through)
                seen = [other for call in through for other in call.specs]
                spec = seen[0] if seen and all(other == seen[0] for other in seen) else spec
            role = _ROLES[function.facts.gate]
            sites.append(ActivationSite(names[0], module, spec, role, tuple(names[1:]), "attribute", calls))
        return sites

    def _call_sites(self, module: nn.Module) -> list[ActivationSite]:
        by_name: dict[str, list[ActivationCall]] = {}
        for call in self.seen.functions.values() if self.seen else ():
            if call.owner is module and not call.held:
                by_name.setdefault(call.called, []).append(call)
        first, *others = self.names_of(module)
        sites = []
        for called, calls in by_name.items():
            for call in self._numbered(f"{first}:{called}", calls):
                aliases = tuple(f"{name}{call.name.removeprefix(first)}" for name in others)
                spec = call.specs[0]
                role = _ROLES[is_gate(spec, self.registry)]
                sites.append(ActivationSite(call.name, module, spec, role, aliases, "call", (call,)))
        return sites

    def _numbered(self, name: str, calls: list[ActivationCall]) -> tuple[ActivationCall, ...]:
        """Name calls; those that were swapped already keep their numbers."""
        taken = {other for other in self._swapped_calls.values() if other.startswith(f"{name}#")}
        free = (other for i in itertools.count() if (other := f"{name}#{i}") not in taken)
        for call in calls:
            call.name = next(free) if taken or len(calls) > 1 else name
            call.caller = self.names_of(call.owner)[0]
        return tuple(calls)


def is_gate(spec: ActivationSpec, registry: ActivationRegistry) -> bool:
    """Say whether an activation usually gates another value."""
    return not spec.opaque and registry.entry(spec.name).facts_for(spec.arguments).gate


def activation_spec(module: nn.Module, registry: ActivationRegistry) -> ActivationSpec | None:
    """Return the spec of a module that is an activation site; ``None`` if it is none."""
    if type(module) is nn.Identity:
        return None
    if (entry := registry.entry_of(module)) is None:
        return registry.spec_of(module) if isinstance(module, FunctionActivation) else foreign_spec(module, registry)
    spec = registry.spec_of(module)
    return None if entry.facts_for(spec.arguments).halves else spec


_ARGUMENTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "transformers.activations.ClippedGELUActivation": lambda module: {
        "min": float(module.min),
        "max": float(module.max),
    },
    "timm.layers.activations.PReLU": lambda module: {"num_parameters": module.num_parameters},
}
_OPAQUE = frozenset({"transformers.activations.XIELUActivation"})  # no spec can hold its parameters

# From the class to a name of the registry, by module; the libraries themselves are not imported.
_TIMM = {
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
}
_NAMES: Mapping[str, Mapping[str, str]] = {
    "transformers.activations": {
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
    },
    "timm.layers.activations": _TIMM,
    "timm.layers.activations_me": {f"{name}Me": activation for name, activation in _TIMM.items()},
    "clip.model": {"QuickGELU": "gelu_sigmoid"},
    "open_clip.transformer": {"QuickGELU": "gelu_sigmoid"},
}


def foreign_spec(module: nn.Module, registry: ActivationRegistry) -> ActivationSpec | None:
    """Return the spec of an activation module of transformers, timm or CLIP, if a registry has the activation."""
    # It is the same function to the rounding of another order of operations.
    path = f"{type(module).__module__}.{type(module).__qualname__}"
    if path in _OPAQUE:
        return opaque_spec(module)
    name = _NAMES.get(type(module).__module__, {}).get(type(module).__qualname__)
    if name is None or name not in registry:
        return None
    read = _ARGUMENTS.get(path)
    return registry.resolve(ActivationSpec.of(name, **(read(module) if read else {})))


# Python looks an attribute up in the instance before nn.Module is asked for its children. From torch 2.11 (or before)
# to 2.15 nn.TransformerDecoderLayer.__setstate__ takes a layer whose activation is a module for one of an old version
# that has none, and puts F.relu beside it: every copy computes ReLU, among them the layers that nn.TransformerDecoder
# and nn.Transformer make of the one they are given, and copy.copy spoils the original.
def hidden_modules(model: nn.Module) -> set[int]:
    """Return the ``id`` of every module that an attribute of its name hides wherever it stands: nobody calls it."""
    hidden: set[int] = set()
    seen = {id(model)}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                (seen if vars(parent).get(name, child) is child else hidden).add(id(child))
    return hidden - seen
