"""Where a model has activations: modules, functions that modules hold, and, with a sample, calls of functions."""

import functools
import itertools
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.modules import FunctionActivation
from lit_gelu.surgery.changes import names_of_calls
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.observation import Call, Observation, observe
from lit_gelu.surgery.recognition import FunctionTable, KnownFunction, foreign_spec, hidden_modules

Role = Literal["activation", "gate"]
Kind = Literal["module", "attribute", "call"]


@dataclass(frozen=True)
class ActivationCall:
    """One expression that calls an activation.

    Args:
        name: The site's name, with ``#0``, ``#1``, ... if it is called from several places.
        caller: The fully qualified name of the module whose method makes the call.
        where: File and line.
        count: How often the sample reached it, in one pass.
    """

    name: str
    caller: str
    where: str
    count: int
    _seen: Call = field(repr=False, compare=False)

    @property
    def inputs(self) -> tuple[torch.Size, ...]:
        """The inputs' shapes, without repetition."""
        return tuple(self._seen.inputs)

    @property
    def training_only(self) -> bool:
        """Whether only the pass in training mode reached it."""
        return self._seen.training_only

    def __str__(self) -> str:
        only = ", in training alone" if self.training_only else ""
        return f"{self.name} at {self.where}, {self.count} time{'s' * (self.count != 1)}{only}"


@dataclass(frozen=True)
class ActivationSite:
    """A place of a model where an activation is computed.

    Args:
        name: Of a module, its fully qualified name; empty for the model itself. Of a function that a module holds as
            an attribute, the attribute's. Of a call of a function or of a tensor's method, the calling module's name, a
            colon, the activation's name, and, if the module has several such calls, ``#0``, ``#1``, ... in the order in
            which they are first reached: ``"blocks.0.mlp:gelu"``, ``":relu#1"``.
        module: The activation module; for an attribute or a call, the module that holds it or makes it.
        spec: Its canonical spec.
        role: ``"gate"`` for sigmoid, hard sigmoid, tanh and softmax, which mostly gate another value; such a site is
            swapped only if it is named in full, by its class or by its activation.
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


def relative_name(name: str, base: str) -> str:
    """Return the name of a site relative to a module.

    Args:
        name: The site's name in the model.
        base: The module's name in the model; empty for the model itself.

    Returns:
        The rest of the name, after one ``^`` for every level that it is outside the module.

    Example:
        >>> relative_name("blocks.0:gelu", "blocks.0"), relative_name("a.act#1", "b.mlp")
        (':gelu', '^^a.act#1')
    """
    path, tail = _split(name)
    own = _parts(base)
    common = next((i for i, (a, b) in enumerate(zip(path, own, strict=False)) if a != b), min(len(path), len(own)))
    return "^" * (len(own) - common) + ".".join(path[common:]) + tail


def absolute_name(relative: str, base: str) -> str:
    """Return the name in the model of what `relative_name` names.

    Args:
        relative: What `relative_name` returned.
        base: The name that the module has now.

    Returns:
        The name.

    Example:
        >>> absolute_name(":gelu", "encoder.blocks.0"), absolute_name("^^a.act#1", "model.b.mlp")
        ('encoder.blocks.0:gelu', 'model.a.act#1')
    """
    rest = relative.lstrip("^")
    own = _parts(base)
    path, tail = _split(rest)
    return ".".join([*own[: max(0, len(own) - (len(relative) - len(rest)))], *path]) + tail


def _parts(path: str) -> list[str]:
    return path.split(".") if path else []


def _split(name: str) -> tuple[list[str], str]:
    """Return the parts of a site's path, and what names a call behind it."""
    path = re.split(r"[:#]", name, maxsplit=1)[0]
    return _parts(path), name[len(path) :]


def find_sites(
    model: nn.Module, input_sample: Any = None, *, registry: ActivationRegistry | None = None
) -> list[ActivationSite]:
    """List the activations of a model, in the order of its modules.

    *Modules* count if their class is registered, or is one that transformers, timm or CLIP define for an activation
    that is; ``torch.nn.Identity`` does not, because networks use it for much else, nor does a gated unit such as
    ``torch.nn.GLU``: it halves its input, so no other activation could stand there. A module that stands in several
    places is listed once, with its other names; one that an attribute of its name hides, as in the decoder layers of
    ``torch.nn.Transformer(activation=torch.nn.GELU())``, is never called and not listed. *Attributes* of a
    module that hold such a function, as ``torch.nn.TransformerEncoderLayer`` does, are listed too.

    *Calls* are found by a pass of ``input_sample`` in evaluation mode and one in training mode, without gradients,
    after which modes, buffers and random number generators are as before: calls of functions (``F.gelu(x)``,
    ``torch.relu(x)``, ``F.hardtanh(x, 0, 6)``), of tensors' methods (``x.relu()``, ``x.relu_()``), of operators
    (``torch.ops.aten.gelu(x)``) and of activation modules that are no part of the model, such as the ``gelu`` of
    ``transformers.activations``; and for every module from where it is called. One expression is one call, however
    often a loop reaches it. A model that takes no such sample in training mode is surveyed in evaluation alone;
    `coverage` and a swap's report say so. In the modules that ``torch.export`` and ``torch.fx`` make of graphs calls
    are found, and cannot be swapped. What is written out in other operations (``x * (x > 0)``, ``x.clamp(min=0)``) is
    not seen, nor what TorchScript has compiled.

    Args:
        model: Any module; one that is compiled or set up by Lightning's Fabric is looked into.
        input_sample: A tensor, a tuple of ``forward``'s arguments, or a dict of them by name.
        registry: Says what an activation is; by default `lit_gelu.activations.registry`.

    Returns:
        The sites.

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
    """Return the module inside the wrappers of ``torch.compile`` and of Lightning's ``Fabric.setup``, or itself.

    Both would put a prefix before every name.

    Args:
        model: Any module.

    Returns:
        The original module.
    """
    held = getattr(model, "_original_module" if type(model).__name__ == "_FabricModule" else "_orig_mod", None)
    return model if held is None else without_wrappers(held)


def activation_spec(module: nn.Module, registry: ActivationRegistry) -> ActivationSpec | None:
    """Return the spec of a module that is an activation site.

    Args:
        module: Any module.
        registry: Says what an activation is.

    Returns:
        The spec, ``None`` if it is no site.

    Example:
        >>> str(activation_spec(nn.Softmax(dim=-1), activations.registry))
        'opaque:torch.nn.modules.activation.Softmax(dim=-1)'
    """
    if type(module) is nn.Identity:
        return None
    if type(module) is nn.Softmax:
        dim = () if module.dim is None else (("dim", module.dim),)
        return ActivationSpec("torch.nn.modules.activation.Softmax", dim, opaque=True)
    entry = registry.entry_of(module)
    if entry is None:
        return registry.spec_of(module) if isinstance(module, FunctionActivation) else foreign_spec(module, registry)
    spec = registry.spec_of(module)
    return None if entry.facts_for(spec.arguments).halves else spec


class Survey:
    """All that is known of a model's sites, and of the pass that found them.

    Args:
        model: The model, without a wrapper.
        input_sample: As `find_sites`.
        registry: As `find_sites`.

    Attributes:
        sites: The sites, in the order of the modules.
        seen: What the pass saw; ``None`` without a sample.
        table: Which functions count.
    """

    def __init__(self, model: nn.Module, input_sample: Any, registry: ActivationRegistry) -> None:
        self.model = model
        self.registry = registry
        self.table = FunctionTable(registry)
        self._names: dict[int, list[str]] = {}
        modules: dict[int, nn.Module] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            self._names.setdefault(id(module), []).append(name)
            modules[id(module)] = module
        hidden = hidden_modules(model)
        specs = {key: activation_spec(module, registry) for key, module in modules.items() if key not in hidden}
        self._specs = {key: spec for key, spec in specs.items() if spec is not None}
        held = {key: self._held(module) for key, module in modules.items() if key not in self._specs}
        self._held_functions = {key: found for key, found in held.items() if found}
        self._swapped_calls = {
            id(getattr(module, child)): absolute_name(name, self._names[key][0])
            for key, module in modules.items()
            for child, name in names_of_calls(module).items()
        }
        self.seen: Observation | None = None
        if input_sample is not None:
            known = {key: {name: f for name, (f, _) in found.items()} for key, found in self._held_functions.items()}
            named = {key: modules[key] for key in self._specs}
            spec_of = functools.partial(activation_spec, registry=registry)
            self.seen = observe(model, input_sample, self.table, named, known, spec_of)
        self.sites = [site for module in modules.values() for site in self._sites_of(module)]

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the model may have activations that are not seen, in sentences."""
        notes = []
        if self.seen is not None and self.seen.training_error:
            notes.append(
                f"What runs in training alone is not known: the sample fails in training mode "
                f"({self.seen.training_error})."
            )
        scripted = {
            name: module for name, module in self.model.named_modules() if isinstance(module, torch.jit.ScriptModule)
        }
        outermost = [
            name or "the model itself" for name in scripted if not name or name.rpartition(".")[0] not in scripted
        ]
        if outermost:
            notes.append(f"TorchScript has compiled {', '.join(outermost)}: activations in it are no sites.")
        return tuple(notes)

    def names_of(self, module: nn.Module) -> list[str]:
        """Return all fully qualified names of a module.

        Args:
            module: A module of the model.

        Returns:
            The names.
        """
        return self._names[id(module)]

    def spec_of_held(self, site: ActivationSite) -> ActivationSpec:
        """Return the spec of a function that a module holds, without what its calls add.

        Args:
            site: The attribute.

        Returns:
            The spec.
        """
        return self._held_functions[id(site.module)][site.name.rpartition(".")[2]][1]

    def _held(self, module: nn.Module) -> dict[str, tuple[KnownFunction, ActivationSpec]]:
        """Return the attributes of a module that hold a function which is an activation."""
        found = {name: self.table.find_held(value) for name, value in vars(module).items()}
        return {
            name: (row[0], self.table.spec(row[0], (None,), row[1])) for name, row in found.items() if row is not None
        }

    def _sites_of(self, module: nn.Module) -> list[ActivationSite]:
        """Return the site that a module is, or those that it holds or calls."""
        if id(module) in self._specs:
            return [self._module_site(module)]
        return [*self._attribute_sites(module), *self._call_sites(module)]

    def _module_site(self, module: nn.Module) -> ActivationSite:
        spec, names = self._specs[id(module)], self.names_of(module)
        seen = None if self.seen is None else list(self.seen.modules.get(id(module), {}).values())
        calls = None if seen is None else self._numbered(names[0], seen)
        gate = self.is_gate(spec)
        return ActivationSite(
            names[0],
            module,
            spec,
            "gate" if gate else "activation",
            tuple(names[1:]),
            "module",
            calls,
            self._swapped_calls.get(id(module), ""),
        )

    def _attribute_sites(self, module: nn.Module) -> list[ActivationSite]:
        sites = []
        for attribute, (known, spec) in self._held_functions.get(id(module), {}).items():
            names = [f"{name}.{attribute}".removeprefix(".") for name in self.names_of(module)]
            calls = None
            if self.seen is not None:
                through = [c for c in self.seen.functions.values() if c.holder is module and c.held == attribute]
                calls = self._numbered(names[0], through)
                seen = [other for call in through for other in call.specs]
                spec = seen[0] if seen and all(other == seen[0] for other in seen) else spec
            sites.append(_site(names, module, spec, known.gate, "attribute", calls))
        return sites

    def _call_sites(self, module: nn.Module) -> list[ActivationSite]:
        if self.seen is None:
            return []
        by_name: dict[str, list[Call]] = {}
        for seen in self.seen.functions.values():
            if seen.owner is module and not seen.held:
                by_name.setdefault(seen.name, []).append(seen)
        sites = []
        for called, rows in by_name.items():
            first = self.names_of(module)[0]
            for seen, call in zip(rows, self._numbered(f"{first}:{called}", rows), strict=True):
                names = [f"{name}{call.name.removeprefix(first)}" for name in self.names_of(module)]
                sites.append(_site(names, module, seen.specs[0], self.is_gate(seen.specs[0]), "call", (call,)))
        return sites

    def _numbered(self, name: str, calls: list[Call]) -> tuple[ActivationCall, ...]:
        """Name calls; those that were swapped already keep their numbers."""
        taken = {other for other in self._swapped_calls.values() if other.startswith(f"{name}#")}
        free = (other for i in itertools.count() if (other := f"{name}#{i}") not in taken)
        return tuple(
            ActivationCall(
                next(free) if taken or len(calls) > 1 else name,
                self.names_of(call.owner)[0],
                call.where,
                call.count,
                call,
            )
            for call in calls
        )

    def is_gate(self, spec: ActivationSpec) -> bool:
        """Say whether an activation usually gates another value.

        Args:
            spec: Its canonical spec.

        Returns:
            Whether it does; softmax, which is not registered, among them.
        """
        if spec.opaque:
            return spec.name.lower().endswith("softmax")
        return self.registry.entry(spec.name).facts_for(spec.arguments).gate


def _site(
    names: list[str],
    module: nn.Module,
    spec: ActivationSpec,
    gate: bool,
    kind: Kind,
    calls: tuple[ActivationCall, ...] | None,
) -> ActivationSite:
    return ActivationSite(names[0], module, spec, "gate" if gate else "activation", tuple(names[1:]), kind, calls)
