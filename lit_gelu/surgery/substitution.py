"""How a site gets its new activation: the changes that each kind of site takes, and whether it then runs."""

import ast
import contextlib
import inspect
import itertools
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from lit_gelu.activations import ActivationSpec
from lit_gelu.errors import SwapError
from lit_gelu.surgery.changes import (
    Become,
    Change,
    Edit,
    InterceptedCall,
    KeptChild,
    RebindCompiled,
    RebindMethod,
    RewrittenCall,
    SetAttribute,
    SetChild,
    SetClass,
    edits_of,
    innermost_method,
    make_all,
)
from lit_gelu.surgery.observation import (
    Key,
    SeenCall,
    before_every_module,
    functions_called,
    key_of,
    locate,
    on_the_side,
    run,
)
from lit_gelu.surgery.places import CallPlace
from lit_gelu.surgery.recognition import FunctionTable
from lit_gelu.surgery.rewriting import edited_class
from lit_gelu.surgery.sites import ActivationSite, Survey, relative_name

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Substitution:
    """Where a new module will stand, and how it comes to be called."""

    site: ActivationSite
    module: nn.Module  # the new one
    place: str  # its fully qualified name
    mechanism: str  # in words
    edits: tuple[Edit, ...] = ()  # the changes of the calling module's class, if it needs any

    @property
    def is_in_place(self) -> bool:
        """Whether the new module stands where one stood, and no child is added."""
        return not self.edits


def substitution(survey: Survey, site: ActivationSite, module: nn.Module) -> Substitution:
    """Decide how a site gets its new module; `SwapError` says why it cannot."""
    if site.kind == "module":
        return Substitution(site, module, site.name, "module")
    if site.kind == "attribute":
        _require_no_container(site, site.module)
        return Substitution(
            site, module, site.name, "attribute made a module", _calls_with_more(site, survey.spec_of_held(site))
        )
    (call,) = site.calls or ()
    owner = survey.names_of(call.seen.owner)[0]
    if call.seen.child:
        place = f"{owner}.{call.seen.child}".removeprefix(".")
        return Substitution(site, module, place, "module, at one of its places")
    edit, mechanism = _edit(survey, site, call.seen, owner)
    return Substitution(site, module, f"{owner}.{edit.child}".removeprefix("."), mechanism, (edit,))


def _edit(survey: Survey, site: ActivationSite, seen: SeenCall, owner: str) -> tuple[Edit, str]:
    """Return how a call is sent to a child of the calling module, and that in words."""
    relative = relative_name(site.name, owner)
    child = _child_name(seen.owner, relative)
    _require_no_container(site, seen.owner)
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
    if seen.function is None or reason:
        raise SwapError(
            f"{site.name!r}, at {seen.where}, cannot be swapped: {seen.place}{f'; and {reason}' if reason else ''}. "
            "Have the module hold an activation module and call that."
        )
    functions = survey.table.named(seen.function.name)
    return InterceptedCall(seen.function.name, functions, child, relative), f"call intercepted, because {seen.place}"


def _calls_with_more(site: ActivationSite, declared: ActivationSpec) -> tuple[Edit, ...]:
    """Return how calls of a held function are written anew that give more than the input, or give it by name."""
    edits: list[Edit] = []
    attribute = site.name.rpartition(".")[2]
    for call in site.calls or ():
        place = call.seen.place
        if isinstance(place, CallPlace) and call.seen.owner is site.module:
            expression = ast.parse(place.text, mode="eval").body
            if isinstance(expression, ast.Call) and (len(expression.args) != 1 or expression.keywords):
                edits.append(RewrittenCall(place, attribute, attribute))
        elif any(spec != declared for spec in call.seen.specs):
            reason = place if isinstance(place, str) else f"that is in {type(call.seen.owner).__name__}"
            raise SwapError(
                f"{site.name!r} cannot become a module, which takes its input alone: at {call.where} it is called as "
                f"{call.seen.specs[0]}, and {reason}. Have it called with the input alone."
            )
    return tuple(edits)


def _require_no_container(site: ActivationSite, owner: nn.Module) -> None:
    """Refuse a new child of a module that goes through its children: the activation would be one of its layers."""
    kind = next((kind for kind in _CONTAINERS if isinstance(owner, kind)), None)
    if kind is not None:
        raise SwapError(
            f"{site.name!r} cannot be swapped: {type(owner).__name__} is an nn.{kind.__name__}, for which a new child "
            "is one layer more. Write a module that holds the layers and the activation."
        )


def _obstacle_to_interception(survey: Survey, seen: SeenCall) -> str:
    """Say why a function cannot be intercepted while the calling module's ``forward`` runs; empty if it can."""
    if seen.function is None or survey.seen is None:
        return ""
    if any(spec.arguments.get("inplace") for spec in seen.specs):
        return "it overwrites its input, which another activation would not"
    if seen.checkpointed:
        return "it is called through torch.utils.checkpoint, which calls it again when forward runs no more"
    if len(survey.seen.extents.get((id(seen.owner), seen.function.name), ())) != 1:
        return f"{seen.function.name} is called from other places too while {type(seen.owner).__name__}.forward runs"
    return ""


def _child_name(owner: nn.Module, relative: str) -> str:
    """Return a free name for the module of a call, such as ``gelu_call`` or ``relu_call_1``."""
    called, _, number = re.split(r"[.:^]", relative)[-1].partition("#")
    stem = called if called.isidentifier() else "activation"
    candidates = (f"{stem}_call{f'_{number}' if number else ''}{'_' * extra}" for extra in itertools.count())
    taken = {*dir(type(owner)), *vars(owner), *owner._modules, *owner._parameters, *owner._buffers}
    return next(name for name in candidates if name not in taken)


def changes_for(model: nn.Module, planned: Sequence[Substitution]) -> list[Change]:
    """Return the changes, in order, that put new modules where they are to stand."""
    changes: list[Change] = []
    edits: dict[nn.Module, list[Edit]] = {}
    for row in planned:
        if row.place == "":
            _require_same_layout(model, row.module)
            changes.append(Become(model, row.module))
            continue
        for name in row.site.names if row.site.kind != "call" else (row.place,):
            parent_name, _, child = name.rpartition(".")
            parent = model.get_submodule(parent_name)
            changes.append(SetChild(parent, child, row.module))
            new_edits = list(row.edits)
            if isinstance(parent, nn.TransformerDecoderLayer) and child == "activation":
                new_edits += {KeptChild(child)}.difference(edits_of(parent))  # its copies would hide it
            edits_of_parent = edits.setdefault(parent, [])  # under another name of the same module it has them already
            edits_of_parent += [edit for edit in new_edits if edit not in edits_of_parent]
    for owner, rows in edits.items():
        if rows:
            in_order = tuple(sorted(rows, key=lambda edit: edit.child))
            changes.append(SetClass(owner, edited_class(type(owner), in_order)))
            changes += _kept_methods(owner, {_method_of(edit) for edit in rows if not isinstance(edit, KeptChild)})
    modules = [(row.site.names, row.module) for row in planned if row.site.kind != "call" and row.place]
    return [*changes, *fused_paths(model, modules)]


def _method_of(edit: Edit) -> str:
    return "forward" if isinstance(edit, InterceptedCall | KeptChild) else edit.place.method


def _kept_methods(owner: nn.Module, methods: set[str]) -> list[Change]:
    """Return how methods that a module keeps in attributes follow its class; Lightning leaves such ones."""
    kept: list[Change] = []
    held = dict(vars(owner))
    for attribute, value in held.items():
        kept += [RebindMethod(owner, attribute, name) for name in sorted(methods) if _is_method_of(owner, value, name)]
    for name in sorted(methods & held.keys()):
        written = innermost_method(held[name])
        if _is_method_of(owner, held[name], name):
            continue
        if held.get("_compiler_ctx") is not None and _is_method_of(owner, written, name):
            kept.append(RebindCompiled(owner, name))
            continue
        # It is not that method of the class: a changed class would change nothing.
        raise SwapError(_hidden_by(owner, name, is_compiled=written is not held[name]))
    return kept


def _is_method_of(owner: nn.Module, value: object, method: str) -> bool:
    """Return whether a value is the bound method that a module's class has under a name."""
    return (
        isinstance(value, types.MethodType)
        and value.__self__ is owner
        and value.__func__ is inspect.getattr_static(type(owner), method)
    )


def _hidden_by(owner: nn.Module, name: str, *, is_compiled: bool) -> str:
    """Say what lies on a module where its class's method should run, and what to do."""
    obstacle = f"{type(owner).__name__}.{name} lies on the instance (a {type(vars(owner)[name]).__name__})"
    never = "what is changed in the class's method would never run"
    if is_compiled:
        return (
            f"{obstacle}, as module.{name} = torch.compile(module.{name}) puts it there: {never}. Swap before that, or "
            "call module.compile(), which follows a swap."
        )
    return (
        f"{obstacle}, as accelerate's add_hook_to_module puts it there: {never}. Swap before that, or have the module "
        "hold an activation module and call that."
    )


def _require_same_layout(model: nn.Module, new: nn.Module) -> None:
    """Refuse to turn a module into one of a class with another layout in memory."""
    blank = nn.Module.__new__(type(model))
    try:
        blank.__class__ = type(new)
    except TypeError as error:
        raise SwapError(
            f"The model is itself the activation, and {type(model).__name__} cannot become {type(new).__name__} in "
            f"place: {error}. Build the new one with create()."
        ) from error


def require_no_capture(model: nn.Module, planned: Iterable[tuple[Substitution, ActivationSpec]]) -> None:
    """Refuse a new activation whose own function is intercepted somewhere in the model."""
    planned = list(planned)
    edits = [edit for row, _ in planned for edit in row.edits]
    edits += [edit for module in model.modules() for edit in edits_of(module)]
    functions = {edit.function: edit.child for edit in edits if isinstance(edit, InterceptedCall)}
    for row, spec in planned:
        child = functions.get(spec.name)
        if child is not None and not any(edit.child == child for edit in row.edits):
            raise SwapError(
                f"{row.site.name!r} cannot become {spec}: calls of {spec.name} are intercepted for {child!r}, and "
                "would be here too. Have the module that is intercepted hold an activation module instead."
            )
    _require_no_capture_within(model, [row for row, _ in planned])


def _require_no_capture_within(model: nn.Module, planned: Sequence[Substitution]) -> None:
    """Refuse a new module that itself calls a function which is intercepted while the module around it runs."""
    intercepted = [(row.place.rpartition(".")[0], edit) for row in planned for edit in row.edits]
    intercepted += [(name, edit) for name, module in model.named_modules() for edit in edits_of(module)]
    for row in planned:
        called = None
        for owner, edit in intercepted:
            is_within = not owner or row.place.startswith(f"{owner}.")
            if not isinstance(edit, InterceptedCall) or not is_within or edit in row.edits:
                continue
            called = functions_called(row.module) if called is None else called
            if not called.isdisjoint(edit.paths):
                raise SwapError(
                    f"{row.site.name!r} cannot become what calls {edit.function} itself: in {owner or 'the model'!r} "
                    f"calls of it are intercepted for {edit.child!r}, and would be there too. Have the module that is "
                    "intercepted hold an activation module instead."
                )


# In evaluation without gradients, nn.TransformerEncoderLayer computes everything in one kernel, in which the
# activation is what its flag says; and nn.TransformerEncoder passes nested tensors, which only that kernel takes. The
# kernel's GELU is the exact one, whatever nn.GELU.approximate says.
_FLAG = "activation_relu_or_gelu"
_OFF, _RELU, _EXACT_GELU = 0, 1, 2


def fused_paths(model: nn.Module, places: Iterable[tuple[Iterable[str], nn.Module]]) -> list[Change]:
    """Return what must change so that a model's fused paths follow new activations, given by all of their names."""
    flags: dict[nn.Module, int] = {}
    for names, activation in places:
        for name in names:
            parent_name, _, child = name.rpartition(".")
            parent = model.get_submodule(parent_name)
            if isinstance(parent, nn.TransformerEncoderLayer) and child == "activation":
                flags[parent] = _fused_flag(activation)
    changes: list[Change] = [
        SetAttribute(layer, _FLAG, flag) for layer, flag in flags.items() if getattr(layer, _FLAG, flag) != flag
    ]
    off = {layer for layer, flag in flags.items() if flag == _OFF}
    for encoder in model.modules() if off else ():
        if isinstance(encoder, nn.TransformerEncoder) and getattr(encoder, "use_nested_tensor", False):
            layers: Iterable[nn.Module] = encoder.layers
            if not off.isdisjoint(layers):
                changes.append(SetAttribute(encoder, "use_nested_tensor", False))
    return changes


def _fused_flag(activation: nn.Module) -> int:
    """Return what the flag of an encoder layer is to be: the kernel's activation, or its fused path switched off."""
    if type(activation) is nn.GELU:
        return _EXACT_GELU if activation.approximate == "none" else _OFF
    return _RELU if type(activation) is nn.ReLU else _OFF


def ineffective(
    model: nn.Module, input_sample: Any, planned: Sequence[Substitution], changes: Sequence[Change]
) -> dict[int, str]:
    """Find by number, and say why, which new modules would not run as what they stand for does with the sample."""
    # A class that was exchanged changes nothing where something else is called: a forward that lies on the instance, a
    # hook or a bound method that was kept before. And a new child runs from elsewhere too where a module's code goes
    # through its children.
    awaited: dict[int, int] = {}
    for number, row in enumerate(planned):
        if row.place and any(call.count for call in row.site.calls or ()):
            awaited[id(row.module)] = number
    callers: dict[int, set[Key]] = {number: set() for number in awaited.values()}
    modules = {id(module): module for module in model.modules()}  # before the new ones come: those are called

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG001 - a hook's signature
        if id(module) in awaited:
            origin = locate(sys._getframe(1), modules)
            callers[awaited[id(module)]].update([] if origin is None else [key_of(origin, "")])
            missing.pop(id(module), None)

    missing = dict(awaited)
    if awaited:
        with _in_effect(changes), before_every_module(note):
            _run_in_evaluation(model, input_sample)
            if missing:
                _run_in_training(model, input_sample)
    reasons = {number: _reason(planned[number]) for number in missing.values()}
    added = {number for number in callers if planned[number].site.kind == "call" and not planned[number].is_in_place}
    return reasons | {number: _CALLED_TWICE for number in added if len(callers[number]) > 1}


def _run_in_evaluation(model: nn.Module, input_sample: Any) -> None:
    try:
        with on_the_side(model):
            run(model, input_sample)
    except SwapError as error:
        cause = error.__cause__ or error
        raise SwapError(
            f"With the new activations {type(model).__name__}.forward fails on input_sample ({type(cause).__name__}: "
            f"{cause}). With the old ones it does not. Choose activations that take what comes there."
        ) from error


def _run_in_training(model: nn.Module, input_sample: Any) -> None:
    # As with the old ones: a model may want more for training, and what did not run is told.
    with contextlib.suppress(SwapError), on_the_side(model, training=True):
        run(model, input_sample)


@contextlib.contextmanager
def _in_effect(changes: Sequence[Change]) -> Iterator[None]:
    make_all(changes)
    try:
        yield
    finally:
        for change in reversed(changes):
            change.revert()


_NEVER = "the new activation would never run, because"
_CALLED_TWICE = "it would run from other places too: the module's code goes through its children"


def _reason(row: Substitution) -> str:
    if any("forward" in vars(call.seen.owner) for call in row.site.calls or ()):
        return f"{_NEVER} forward lies on the instance of its module, where that of the class is not looked at"
    return f"{_NEVER} it is called by something that was kept before, such as a hook or a bound method"


def require_no_aliasing(survey: Survey, input_sample: Any, sites: Iterable[ActivationSite]) -> None:
    """Refuse to replace an activation in place whose overwritten input the model uses again."""
    # y = F.relu(x, inplace=True) followed by a use of x means something else with any activation that leaves its input
    # alone. The sample is run with the same activations on copies of their inputs: if the output is another, the model
    # relies on it.
    inplace = [site for site in sites if site.spec.arguments.get("inplace")]
    if not inplace:
        return
    culprits = _relied_on(survey, input_sample, inplace, training=False)
    with contextlib.suppress(SwapError):  # a model may want more for training
        culprits = culprits or _relied_on(survey, input_sample, inplace, training=True)
    if not culprits:
        return
    raise SwapError(
        f"{', '.join(repr(site.name) for site in culprits)} overwrites its input, and the model uses the overwritten "
        "input again: another activation in its place would change more than the activation. Write it without "
        "inplace=True first, so that the model says what it means."
    )


def _relied_on(
    survey: Survey, input_sample: Any, inplace: list[ActivationSite], *, training: bool
) -> list[ActivationSite]:
    """Return the sites whose overwritten inputs the model uses again, as a pass in one of the modes shows."""

    def outputs(out_of_place: list[ActivationSite]) -> list[Tensor]:
        return _outputs(survey, input_sample, out_of_place, training=training)

    plain = outputs([])
    if _same(plain, outputs(inplace)) or not _same(plain, outputs([])):
        return []  # in the second case the model does not repeat itself, and nothing can be told
    return [site for site in inplace if not _same(plain, outputs([site]))] or inplace


def _outputs(survey: Survey, input_sample: Any, out_of_place: list[ActivationSite], *, training: bool) -> list[Tensor]:
    """Return the tensors that the model puts out while some activations get copies of their inputs."""
    calls = [call.seen for site in out_of_place for call in site.calls or ()]
    seen = survey.seen

    def keys_of(rows: Mapping[Key, SeenCall]) -> set[Key]:
        return {key for key, row in rows.items() if any(row is call for call in calls)}

    modules: dict[nn.Module, set[Key] | None] = {site.module: None for site in out_of_place if site.kind == "module"}
    for module in survey.model.modules():  # of some, only some calls are sites
        keys = keys_of(seen.modules.get(id(module), {})) if seen else set()
        if keys and module not in modules:
            modules[module] = keys
    functions = keys_of(seen.functions) if seen else set()
    copied = _copied_inputs(survey.model, modules)
    with on_the_side(survey.model, training=training), copied, _OutOfPlace(survey.model, survey.table, functions):
        output = run(survey.model, input_sample)
    return [leaf.clone() for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


@contextlib.contextmanager
def _copied_inputs(model: nn.Module, modules: Mapping[nn.Module, set[Key] | None]) -> Iterator[None]:
    """Give modules copies of their inputs, in calls from some expressions or, of ``None``, in all."""
    modules_by_id = {id(module): module for module in model.modules()}

    def copy(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        keys = modules[module]
        origin = None if keys is None else locate(sys._getframe(1), modules_by_id)
        if keys is not None and (origin is None or not any(key[:3] == key_of(origin, "")[:3] for key in keys)):
            return args
        return tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)

    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_pre_hook(copy).remove)
        yield


class _OutOfPlace(TorchFunctionMode):
    """Gives some calls copies of their inputs."""

    def __init__(self, model: nn.Module, table: FunctionTable, keys: set[Key]) -> None:
        super().__init__()
        self._modules = {id(module): module for module in model.modules()}
        self._table = table
        self._keys = keys

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        function = self._table.find_call(func, args, kwargs or {}) if self._keys and args else None
        if function is not None:
            origin = locate(sys._getframe(1), self._modules)
            if origin is not None and key_of(origin, function.name) in self._keys:
                args = (args[0].clone(), *args[1:])
        return func(*args, **(kwargs or {}))


def _same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        if a.is_floating_point()
        else torch.equal(a, b)
        for a, b in zip(first, second, strict=True)
    )
