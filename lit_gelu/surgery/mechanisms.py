"""How a site gets its new activation: the changes to the model that each kind of site takes."""

import inspect
import itertools
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.fx import GraphModule

from lit_gelu.activations import ActivationSpec
from lit_gelu.surgery.changes import (
    Become,
    Change,
    Edit,
    InterceptedCall,
    KeptChild,
    ProbedCall,
    RebindMethod,
    RewrittenCall,
    SetAttribute,
    SetChild,
    SetClass,
    edits_of,
)
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.held_functions import calls_of_attribute
from lit_gelu.surgery.observation import Call
from lit_gelu.surgery.places import CallPlace
from lit_gelu.surgery.rewriting import edited_class
from lit_gelu.surgery.sites import ActivationSite, Survey, relative_name


@dataclass(frozen=True)
class Placement:
    """Where a new module will stand, and how it comes to be called.

    Args:
        site: The site.
        module: The new module.
        place: Its fully qualified name.
        mechanism: In words.
        edits: The changes of the calling module's class, if it needs any.
        note: What is not known of it, a sentence.
    """

    site: ActivationSite
    module: nn.Module
    place: str
    mechanism: str
    edits: tuple[Edit, ...] = ()
    note: str = ""


def placement(survey: Survey, site: ActivationSite, module: nn.Module) -> Placement:
    """Decide how a site gets its new module.

    Args:
        survey: What is known of the model.
        site: The site.
        module: The new module.

    Returns:
        The placement.

    Raises:
        SwapError: If it cannot be done; the message says why.
    """
    if site.kind == "module":
        return Placement(site, module, site.name, "module")
    if site.kind == "attribute":
        held = calls_of_attribute(site, survey.spec_of_held(site))
        return Placement(site, module, site.name, "attribute made a module", held.edits, held.doubt)
    (call,) = site.calls or ()
    owner = survey.names_of(call._seen.owner)[0]
    if call._seen.child:
        return Placement(site, module, f"{owner}.{call._seen.child}".removeprefix("."), "module, at one of its places")
    edit, mechanism = _edit(survey, site, call._seen, owner)
    return Placement(site, module, f"{owner}.{edit.child}".removeprefix("."), mechanism, (edit,))


def _edit(survey: Survey, site: ActivationSite, seen: Call, owner: str) -> tuple[Edit, str]:
    """Return how a call is sent to a child of the calling module.

    Raises:
        SwapError: If it cannot be.
    """
    relative = relative_name(site.name, owner)
    child = _child_name(seen.owner, relative)
    if isinstance(seen.owner, GraphModule):
        raise SwapError(
            f"{site.name!r}, at {seen.where}, cannot be swapped: its module's code is made from a graph (torch.fx, "
            "torch.export), and so are its copies. Swap in the model that the graph was made of."
        )
    if isinstance(seen.owner, torch.jit.ScriptModule):
        raise SwapError(f"{site.name!r}, at {seen.where}, cannot be swapped: its module is compiled by TorchScript.")
    if isinstance(seen.place, CallPlace):
        return RewrittenCall(seen.place, child, relative), "call rewritten"
    reason = _obstacle_to_interception(survey, seen)
    if seen.known is None or reason:
        raise SwapError(
            f"{site.name!r}, at {seen.where}, cannot be swapped: {seen.place}{f'; and {reason}' if reason else ''}. "
            "Have the module hold an activation module and call that."
        )
    functions = survey.table.named(seen.known.name)
    return InterceptedCall(seen.known.name, functions, child, relative), f"call intercepted, because {seen.place}"


def _obstacle_to_interception(survey: Survey, seen: Call) -> str:
    """Say why a function cannot be intercepted while the calling module's ``forward`` runs; empty if it can."""
    if seen.known is None or survey.seen is None:
        return ""
    if any(spec.arguments.get("inplace") for spec in seen.specs):
        return "it overwrites its input, which another activation would not"
    if seen.checkpointed:
        return "it is called through torch.utils.checkpoint, which calls it again when forward runs no more"
    if len(survey.seen.extents.get((id(seen.owner), seen.known.name), ())) != 1:
        return f"{seen.known.name} is called from other places too while {type(seen.owner).__name__}.forward runs"
    return ""


def _child_name(owner: nn.Module, relative: str) -> str:
    """Return a free name for the module of a call, such as ``gelu_call`` or ``relu_call_1``."""
    called, _, number = re.split(r"[.:^]", relative)[-1].partition("#")
    stem = called if called.isidentifier() else "activation"
    candidates = (f"{stem}_call{f'_{number}' if number else ''}{'_' * extra}" for extra in itertools.count())
    return next(name for name in candidates if not hasattr(owner, name))


def changes_for(model: nn.Module, placements: list[Placement]) -> list[Change]:
    """Return the changes that put new modules where they are to stand.

    Args:
        model: The model.
        placements: Where.

    Returns:
        The changes, in order.

    Raises:
        SwapError: If a module's class cannot be changed.
    """
    changes: list[Change] = []
    edits: dict[nn.Module, list[Edit]] = {}
    for row in placements:
        if row.place == "":
            _require_same_layout(model, row.module)
            changes.append(Become(model, row.module))
            continue
        for name in row.site.names if row.site.kind != "call" else (row.place,):
            parent_name, _, child = name.rpartition(".")
            parent = model.get_submodule(parent_name)
            changes.append(SetChild(parent, child, row.module))
            known = edits.setdefault(parent, [])  # under another name of the same module it has them already
            wanted: list[Edit] = [*row.edits, *_kept_child(parent, child)]
            known += [edit for edit in wanted if edit not in known]
    for owner, rows in ((owner, rows) for owner, rows in edits.items() if rows):
        changes.append(SetClass(owner, edited_class(type(owner), tuple(sorted(rows, key=lambda edit: edit.child)))))
        changes += _kept_methods(owner, {_method_of(edit) for edit in rows if not isinstance(edit, KeptChild)})
    modules = [(row.site.names, row.module) for row in placements if row.site.kind != "call" and row.place]
    return [*changes, *follow_fused_paths(model, encoder_layers(model, modules))]


def _kept_child(parent: nn.Module, child: str) -> list[KeptChild]:
    """Return what keeps the activation of a decoder layer in its copies, if nothing does so yet."""
    kept = KeptChild(child)
    needed = isinstance(parent, nn.TransformerDecoderLayer) and child == "activation" and kept not in edits_of(parent)
    return [kept] if needed else []


def _method_of(edit: RewrittenCall | InterceptedCall | ProbedCall) -> str:
    return "forward" if isinstance(edit, InterceptedCall) else edit.place.method


def _kept_methods(owner: nn.Module, methods: set[str]) -> list[RebindMethod]:
    """Return how bound methods that a module keeps in attributes follow its class; Lightning's DDP leaves one behind.

    Raises:
        SwapError: If an attribute hides a method, and is not that method of the class: a changed class would change
            nothing.
    """
    kept = [
        RebindMethod(owner, attribute, method)
        for attribute, value in vars(owner).items()
        for method in sorted(methods)
        if isinstance(value, types.MethodType)
        and value.__self__ is owner
        and value.__func__ is inspect.getattr_static(type(owner), method)
    ]
    hidden = sorted(methods & vars(owner).keys() - {change.attribute for change in kept})
    if hidden:
        name = hidden[0]
        raise SwapError(
            f"{type(owner).__name__}.{name} lies on the instance (a {type(vars(owner)[name]).__name__}), as "
            "accelerate's add_hook_to_module puts it there: what is changed in the class's method would never run. "
            "Swap before that, or have the module hold an activation module and call that."
        )
    return kept


def _require_same_layout(model: nn.Module, new: nn.Module) -> None:
    """Refuse to turn a module into one of a class with another layout in memory.

    Raises:
        SwapError: If the classes do not allow it.
    """
    blank = nn.Module.__new__(type(model))
    try:
        blank.__class__ = type(new)
    except TypeError as error:
        raise SwapError(
            f"The model is itself the activation, and {type(model).__name__} cannot become {type(new).__name__} in "
            f"place: {error}. Build the new one with create()."
        ) from error


def require_no_capture(model: nn.Module, placements: list[tuple[Placement, ActivationSpec]]) -> None:
    """Refuse a new activation whose own function is intercepted somewhere in the model.

    Args:
        model: The model.
        placements: The new modules, with their specs.

    Raises:
        SwapError: If one would be intercepted.
    """
    edits = [edit for row, _ in placements for edit in row.edits]
    edits += [edit for module in model.modules() for edit in edits_of(module)]
    functions = {edit.function: edit.child for edit in edits if isinstance(edit, InterceptedCall)}
    for row, spec in placements:
        child = functions.get(spec.name)
        if child is not None and not any(edit.child == child for edit in row.edits):
            raise SwapError(
                f"{row.site.name!r} cannot become {spec}: calls of {spec.name} are intercepted for {child!r}, and "
                "would be here too. Have the module that is intercepted hold an activation module instead."
            )


_FLAG = "activation_relu_or_gelu"
_OFF, _RELU, _EXACT_GELU = 0, 1, 2


def follow_fused_paths(model: nn.Module, activations: Mapping[nn.Module, nn.Module]) -> list[Change]:
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
