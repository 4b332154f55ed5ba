"""How a site gets its new activation: what the module takes over, the changes that it needs, whether it then runs."""

import ast
import contextlib
import inspect
import itertools
import re
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils import _pytree as pytree

from lit_gelu.activations import ActivationSpec
from lit_gelu.errors import SwapError
from lit_gelu.sandbox import equal
from lit_gelu.surgery.class_edits import Edit, edited_class
from lit_gelu.surgery.observation import Key, before_every_module, key_of, locate, on_the_side, run
from lit_gelu.surgery.sites import ActivationSite, Survey, relative_name
from lit_gelu.surgery.source import CallPlace

_COMPUTING_PARAMETERS = BasePruningMethod, WeightNorm, SpectralNorm  # before each call
_REMEDY = "Have the module hold an activation module and call that."


@dataclass
class SetChild:
    """Sets a child module: in the place of another, of an attribute that is no module, or a new one at the end."""

    parent: nn.Module
    name: str
    module: nn.Module
    _before: nn.Module | None = field(default=None, init=False)
    _attributes: dict[str, Any] | None = field(default=None, init=False)

    def make(self) -> None:
        """Make the change."""
        self._before = self.parent._modules.get(self.name)
        if self.name in vars(self.parent):
            self._attributes = dict(vars(self.parent))
        setattr(self.parent, self.name, self.module)
        if isinstance(self.parent, nn.TransformerDecoderLayer) and self.name == "activation":
            # Copies that find none in the layer's dictionary put F.relu there; see `sites.hidden_modules`.
            vars(self.parent)[self.name] = self.module

    def stands(self) -> bool:
        """Say whether the model is still as the change left it."""
        return self.parent._modules.get(self.name) is self.module

    def revert(self) -> None:
        """Put back what was there before."""
        vars(self.parent).pop(self.name, None)
        if self._before is not None:
            setattr(self.parent, self.name, self._before)
        else:
            self.parent._modules.pop(self.name, None)
        if self._attributes is not None:  # the order of attributes comes back too
            now = vars(self.parent)
            later = {key: value for key, value in now.items() if key not in self._attributes}
            kept = {key: now.get(key, value) for key, value in self._attributes.items()}
            now.clear()
            now.update(kept | later)


@dataclass
class SetAttribute:
    """Sets an attribute that is no module: the class, a bound method of it, a flag."""

    target: nn.Module
    name: str
    value: Any
    _before: Any = field(default=None, init=False)

    def make(self) -> None:
        """Make the change."""
        self._before = getattr(self.target, self.name)
        setattr(self.target, self.name, self.value)

    def stands(self) -> bool:
        """Say whether the model is still as the change left it."""
        return self.name != "__class__" or type(self.target) is self.value  # the others follow from the class

    def revert(self) -> None:
        """Put back what was there before."""
        setattr(self.target, self.name, self._before)


Change = SetChild | SetAttribute


@contextlib.contextmanager
def in_effect(changes: Sequence[Change]) -> Iterator[contextlib.ExitStack]:
    """Make changes in order, and take them back on leaving or if one fails, unless ``pop_all`` is called."""
    with contextlib.ExitStack() as stack:
        for change in changes:
            change.make()
            stack.callback(change.revert)
        yield stack


def revert_all(changes: Sequence[Change]) -> None:
    """Take changes back, the last first; `SwapError`, and nothing is done, if one of them stands no more."""
    for change in changes:
        if not change.stands():
            what = f"{change.name!r}" if isinstance(change, SetChild) else "a module"
            raise SwapError(f"Cannot undo: {what} has been given something else since. Undo the later swap first.")
    for change in reversed(changes):
        change.revert()


def share_hooks(source: nn.Module, target: nn.Module) -> None:
    """Give a module the very dictionaries of another's hooks, so that a handle's ``remove`` works for both."""
    for attribute in vars(nn.Module()):
        if "forward_" in attribute or "backward_" in attribute:  # those of a state_dict are each module's own
            setattr(target, attribute, getattr(source, attribute))


@dataclass(frozen=True)
class Substitution:
    """Where a new module will stand, and how it comes to be called."""

    site: ActivationSite
    module: nn.Module  # the new one
    place: str  # its fully qualified name
    mechanism: str  # in words
    edits: tuple[Edit, ...] = ()  # the changes of the calling module's class, if it needs any


def substitution(survey: Survey, site: ActivationSite, module: nn.Module) -> Substitution:
    """Decide how a site gets its new module; `SwapError` says why it cannot."""
    if site.kind == "module":
        if site.name == "":
            raise SwapError("The model is itself the activation. Build the new one with lit_gelu.activations.create.")
        return Substitution(site, module, site.name, "module")
    if site.kind == "attribute":
        _require_no_container(site, site.module)
        edits = _calls_with_more(site, survey.spec_of_held(site))
        return Substitution(site, module, site.name, "attribute made a module", edits)
    (call,) = site.calls or ()
    owner = survey.names_of(call.owner)[0]
    if call.child:
        return Substitution(site, module, f"{owner}.{call.child}".removeprefix("."), "module, at one of its places")
    _require_no_container(site, call.owner)
    obstacle = call.place
    if isinstance(call.owner, GraphModule):
        obstacle = "its module's code is made from a graph, and so are its copies"
    if not isinstance(obstacle, CallPlace):
        raise SwapError(f"{site.name!r}, at {call.where}, cannot be swapped: {obstacle}. {_REMEDY}")
    relative = relative_name(site.name, owner)
    called, _, number = re.split(r"[.:^]", relative)[-1].partition("#")
    stem = called if called.isidentifier() else "activation"
    candidates = (f"{stem}_call{f'_{number}' if number else ''}{'_' * extra}" for extra in itertools.count())
    caller = call.owner
    taken = {*dir(type(caller)), *vars(caller), *caller._modules, *caller._parameters, *caller._buffers}
    child = next(name for name in candidates if name not in taken)
    edit = Edit(obstacle, child, relative)
    return Substitution(site, module, f"{owner}.{child}".removeprefix("."), "call rewritten", (edit,))


def _calls_with_more(site: ActivationSite, declared: ActivationSpec) -> tuple[Edit, ...]:
    """Return how calls of a held function are written anew that give more than the input, or give it by name."""
    edits: list[Edit] = []
    attribute = site.name.rpartition(".")[2]
    for call in site.calls or ():
        place = call.place
        if isinstance(place, CallPlace) and call.owner is site.module:
            expression = ast.parse(place.text, mode="eval").body
            if isinstance(expression, ast.Call) and (len(expression.args) != 1 or expression.keywords):
                edits.append(Edit(place, attribute, attribute))
        elif any(spec != declared for spec in call.specs):
            reason = place if isinstance(place, str) else f"that is in {type(call.owner).__name__}"
            raise SwapError(
                f"{site.name!r} cannot become a module, which takes its input alone: at {call.where} it is called as "
                f"{call.specs[0]}, and {reason}. Have it called with the input alone."
            )
    return tuple(edits)


def _require_no_container(site: ActivationSite, owner: nn.Module) -> None:
    """Refuse a new child of a module that goes through its children: the activation would be one of its layers."""
    if isinstance(owner, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        raise SwapError(
            f"{site.name!r} cannot be swapped: of {type(owner).__name__}, a container, a new child is one layer more. "
            "Write a module that holds the layers and the activation."
        )


def fit_into(model: nn.Module, row: Substitution) -> None:
    """Give a new module the old one's mode and hooks, device, dtype and trainability of the weights there."""
    site, new, before = row.site, row.module, row.site.module
    new.train(before.training)
    if site.kind == "module":
        # Hooks that rest on what was put into the old module do not fit the new one.
        hooks = [hook for hook in before._forward_pre_hooks.values() if isinstance(hook, _COMPUTING_PARAMETERS)]
        added = list(before._modules) if type(before).__module__.startswith("torch.nn.") else []
        if hooks or (added and (before._forward_hooks or before._forward_pre_hooks)):
            raise SwapError(
                f"{site.name!r} cannot be swapped: its hooks need {', '.join(added) or 'its parameters'}, as pruning, "
                "weight_norm and torch.ao.quantization put them there. Swap first, then call those."
            )
        share_hooks(before, new)
    if not any(True for _ in (*new.parameters(), *new.buffers())):
        return
    places = site.names if site.kind == "module" else (row.place,)
    old = list(before.parameters()) if site.kind == "module" else []
    neighbours = [weight for place in places for weight in weights_beside(model, place)]
    reference = next((p for p in (*old, *neighbours) if p.is_floating_point()), next(iter((*old, *neighbours)), None))
    if reference is not None:
        new.to(device=reference.device, dtype=reference.dtype if reference.is_floating_point() else None)
    weights = old or [weight for weight in neighbours if _is_matrix(weight)]
    if weights and not any(weight.requires_grad for weight in weights):
        new.requires_grad_(False)


def require_no_holder_of_parameters(model: nn.Module, row: Substitution) -> None:
    """Refuse parameters that come or go where somebody else holds the model's."""
    old = list(row.site.module.parameters()) if row.site.kind == "module" else []
    if not old and next(row.module.parameters(), None) is None:
        return
    wrappers = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}  # fully_shard's is the last
    wrapped = not wrappers.isdisjoint(cls.__name__ for module in model.modules() for cls in type(module).__mro__)
    if wrapped or any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        raise SwapError(
            f"{row.site.name!r} cannot be swapped: parameters would come or go, and what holds the model's already "
            "(fully_shard, FullyShardedDataParallel, DistributedDataParallel, tensor parallelism) would not see it. "
            "Swap before that, or to and from activations without parameters."
        )


def weights_beside(model: nn.Module, place: str, other_than: Collection[int] = ()) -> list[nn.Parameter]:
    """Return the weights that a place in a model belongs to, nearest first: new parameters there share their fate.

    In the smallest module around it that has any, they are those of its last child before the place, else of the first
    behind it. Matrices and kernels decide which child that is, in models that have some.
    """
    # The order of all weights alone would take a part's first activation for the last one's of the part before.
    around = place.split(".")[:-1]
    rows: list[tuple[list[str], nn.Parameter]] = []
    here, end_of_part = None, 0
    for name, module in model.named_modules():
        path = name.split(".") if name else []
        here = len(rows) if name == place else here
        if place and not f"{name}.".startswith(f"{place}."):  # without a name the model itself is the place
            rows += [(path, weight) for weight in module.parameters(recurse=False) if id(weight) not in other_than]
        end_of_part = len(rows) if path[: len(around)] == around else end_of_part
    here = end_of_part if here is None else here  # a new child comes last
    nearest = [*reversed(rows[:here]), *rows[here:]]

    def shared(row: tuple[list[str], nn.Parameter]) -> int:
        return sum(row[0][:depth] == around[:depth] for depth in range(1, len(around) + 1))

    first = max([row for row in nearest if _is_matrix(row[1])] or nearest, key=shared, default=None)
    if first is None:
        return []
    depth = shared(first) + 1
    return [weight for path, weight in nearest if path[:depth] == first[0][:depth]]


def _is_matrix(weight: nn.Parameter) -> bool:
    return isinstance(weight, UninitializedParameter) or weight.dim() > 1  # a lazy layer's is going to be one


def changes_for(model: nn.Module, planned: Sequence[Substitution]) -> list[Change]:
    """Return the changes, in order, that put new modules where they are to stand."""
    changes: list[Change] = []
    edits: dict[nn.Module, list[Edit]] = {}
    for row in planned:
        for name in row.site.names if row.site.kind != "call" else (row.place,):
            parent_name, _, child = name.rpartition(".")
            parent = model.get_submodule(parent_name)
            changes.append(SetChild(parent, child, row.module))
            of_parent = edits.setdefault(parent, [])  # under another name of the same module it has them already
            of_parent += [edit for edit in row.edits if edit not in of_parent]
    for owner, rows in edits.items():
        if rows:
            edited = edited_class(type(owner), tuple(sorted(rows, key=lambda edit: edit.child)))
            methods = {edit.place.method for edit in rows}
            changes += [SetAttribute(owner, "__class__", edited), *_kept_methods(owner, edited, methods)]
    modules = [(row.site.names, row.module) for row in planned if row.site.kind != "call"]
    return [*changes, *_fused_paths(model, modules)]


def _kept_methods(owner: nn.Module, edited: type[nn.Module], methods: set[str]) -> Iterator[Change]:
    """Yield how bound methods that a module keeps in attributes follow its class; Lightning leaves such ones."""
    for attribute, value in vars(owner).items():
        of_class = [
            method
            for method in methods
            if isinstance(value, types.MethodType)
            and value.__self__ is owner
            and value.__func__ is inspect.getattr_static(type(owner), method)
        ]
        if of_class:
            yield SetAttribute(owner, attribute, types.MethodType(getattr(edited, of_class[0]), owner))
        elif attribute in methods:
            raise SwapError(
                f"{type(owner).__name__}.{attribute} lies on the instance (a {type(value).__name__}), as torch.compile "
                f"and accelerate put it there: what is changed in the class's method would never run. Swap before "
                f"that. {_REMEDY}"
            )


# In evaluation without gradients, nn.TransformerEncoderLayer computes everything in one kernel, in which the
# activation is what its flag says; and nn.TransformerEncoder passes nested tensors, which only that kernel takes. The
# kernel's GELU is the exact one, whatever nn.GELU.approximate says.
_FLAG, _NESTED = "activation_relu_or_gelu", "use_nested_tensor"
_OFF, _RELU, _EXACT_GELU = 0, 1, 2


def _fused_paths(model: nn.Module, places: Iterable[tuple[Iterable[str], nn.Module]]) -> list[Change]:
    """Return what must change so that a model's fused paths follow new activations, given by all of their names."""
    flags: dict[nn.Module, int] = {}
    for names, activation in places:
        flag = _RELU if type(activation) is nn.ReLU else _OFF
        if type(activation) is nn.GELU and activation.approximate == "none":
            flag = _EXACT_GELU
        for name in names:
            parent_name, _, child = name.rpartition(".")
            parent = model.get_submodule(parent_name)
            if isinstance(parent, nn.TransformerEncoderLayer) and child == "activation":
                flags[parent] = flag
    changes: list[Change] = [
        SetAttribute(layer, _FLAG, flag) for layer, flag in flags.items() if getattr(layer, _FLAG, flag) != flag
    ]
    off = {layer for layer, flag in flags.items() if flag == _OFF}
    for encoder in model.modules() if off else ():
        if isinstance(encoder, nn.TransformerEncoder) and getattr(encoder, _NESTED, False):
            layers: Iterable[nn.Module] = encoder.layers
            if not off.isdisjoint(layers):
                changes.append(SetAttribute(encoder, _NESTED, False))
    return changes


def require_effect(model: nn.Module, input_sample: Any, planned: Sequence[Substitution]) -> None:
    """Refuse new modules that would not run as what they stand for does with the sample."""
    # A class that was exchanged changes nothing where something else is called: a hook or a bound method that was kept
    # before. And a new child runs from elsewhere too where a module's code goes through its children.
    awaited = {id(row.module): row for row in planned if any(call.count for call in row.site.calls or ())}
    callers: dict[int, set[Key]] = {}
    modules = {id(module): module for module in model.modules()}  # before the new ones come: those are called

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG001 - a hook's signature
        if id(module) in awaited:
            origin = locate(sys._getframe(1), modules)
            callers.setdefault(id(module), set()).update([] if origin is None else [key_of(origin, "")])

    if awaited:
        with in_effect(changes_for(model, planned)), before_every_module(note):
            try:
                _outputs(model, input_sample)
            except SwapError as error:
                cause = error.__cause__ or error
                raise SwapError(
                    f"With the new activations {type(model).__name__}.forward fails on input_sample "
                    f"({type(cause).__name__}: {cause}). With the old ones it does not. Choose activations that take "
                    "what comes there."
                ) from error
            if callers.keys() != awaited.keys():
                with contextlib.suppress(SwapError):  # a model may want more for training, and that did not run is said
                    _outputs(model, input_sample, training=True)
    for key, row in awaited.items():
        reason = ""
        if key not in callers:
            reason = "the new activation would never run: something is called that was kept before, such as a hook"
        elif row.site.kind == "call" and row.edits and len(callers[key]) > 1:
            reason = "it would run from other places too: the module's code goes through its children"
        if reason:
            raise SwapError(f"{row.site.name!r} cannot be swapped: {reason}. {_REMEDY}")


class _OnCopies(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Any:
        return self.activation(x.clone())


def require_no_aliasing(survey: Survey, input_sample: Any, planned: Sequence[Substitution]) -> None:
    """Refuse to replace an activation in place whose overwritten input the model uses again."""
    # y = F.relu(x, inplace=True) followed by a use of x means something else with any activation that leaves its input
    # alone. The sample is run with the same activations on copies of their inputs: if the output is another, the model
    # relies on it.
    model, registry = survey.model, survey.registry
    if not (inplace := [row for row in planned if row.site.spec.arguments.get("inplace")]):
        return
    on_copies = [
        replace(row, module=_OnCopies(row.site.module if row.site.kind == "module" else registry.create(row.site.spec)))
        for row in inplace
    ]

    def relies_on_it(*, training: bool) -> bool:
        plain, again = (_outputs(model, input_sample, training=training) for _ in range(2))
        with in_effect([change for change in changes_for(model, on_copies) if change.name not in {_FLAG, _NESTED}]):
            copied = _outputs(model, input_sample, training=training)
        # Of a model that does not repeat itself nothing is known.
        return _same(plain, again) and not _same(plain, copied)

    relied_on = relies_on_it(training=False)
    with contextlib.suppress(SwapError):  # a model may want more for training
        relied_on = relied_on or relies_on_it(training=True)
    if relied_on:
        raise SwapError(
            f"{', '.join(repr(row.site.name) for row in inplace)}: the model uses an input again that was overwritten "
            "there. Another activation in its place would change more than the activation. Write it without "
            "inplace=True first, so that the model says what it means."
        )


def _outputs(model: nn.Module, input_sample: Any, *, training: bool = False) -> list[Tensor]:
    with on_the_side(model, training=training):
        output = run(model, input_sample)
    return [leaf.clone() for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def _same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(map(equal, first, second))
