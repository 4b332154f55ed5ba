"""Runs a sample through a model on the side and watches it: which activations are called, by whom, and from where."""

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from lit_gelu.activations import ActivationSpec
from lit_gelu.sandbox import evaluation_sandbox, isolated_random_state
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.places import Caller, CallPlace, call_place, holder_of
from lit_gelu.surgery.recognition import FunctionTable, KnownFunction
from lit_gelu.surgery.source import Position, end_of


def run(model: nn.Module, input_sample: Any) -> Any:
    """Call a model with a copy of a sample, which it may overwrite.

    Args:
        model: The model.
        input_sample: A tensor, a tuple of ``forward``'s arguments, or a dict of them by name.

    Returns:
        What ``forward`` returns.

    Raises:
        SwapError: If it fails.

    Example:
        >>> run(nn.Identity(), {"input": torch.ones(1)})
        tensor([1.])
    """
    sample = pytree.tree_map_only(Tensor, torch.clone, input_sample)
    try:
        match sample:
            case dict():
                return model(**sample)
            case tuple() | list():
                return model(*sample)
            case _:
                return model(sample)
    except Exception as error:
        raise SwapError(
            f"{type(model).__name__}.forward fails on input_sample ({type(error).__name__}: {error}). Give a tensor, a "
            "tuple of forward's arguments or a dict of them by name, on the model's device."
        ) from error


@contextlib.contextmanager
def on_the_side(model: nn.Module) -> Iterator[None]:
    """Let a pass leave no trace: evaluation mode, no gradients, random state and buffers put back, nothing compiled.

    Args:
        model: The model.

    Yields:
        Nothing.
    """
    eager: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and asking would import it
        eager = torch.compiler.set_stance("force_eager")
    with isolated_random_state(model), evaluation_sandbox(model), eager:
        yield


@contextlib.contextmanager
def training_branches(model: nn.Module) -> Iterator[None]:
    """Within `on_the_side`, let a model go the ways that it goes in training.

    Dropout and batch normalisation stay as they are: they have no such ways, and a sample of one example would not do.

    Args:
        model: The model.

    Yields:
        Nothing.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
        >>> with training_branches(model):
        ...     [module.training for module in model.modules()]
        [True, True, False]
        >>> [module.training for module in model.modules()]
        [False, False, False]
    """
    flags = [(module, module.training) for module in model.modules() if not isinstance(module, (_NormBase, _DropoutNd))]
    try:
        for module, _ in flags:
            module.training = True
        yield
    finally:
        for module, training in flags:
            module.training = training


_PASSED_OVER = frozenset({
    "torch._compile",
    "torch._dynamo.eval_frame",
    "torch._jit_internal",
    "torch._ops",
    "torch.nn.functional",
    "torch.nn.modules.module",
    "torch.overrides",
})


def locate(frame: types.FrameType, modules: Mapping[int, Any]) -> Caller | None:
    """Find out which module of a model makes a call.

    Args:
        frame: Where to begin; frames of torch's own wrappers are passed over.
        modules: The model's modules, by ``id``.

    Returns:
        The location, ``None`` if no method of one of the modules is running.
    """
    caller: types.FrameType | None = frame
    while caller is not None and caller.f_globals.get("__name__") in _PASSED_OVER:
        caller = caller.f_back
    if caller is None:
        return None
    owners = [(module, code) for module, code in running_modules(caller) if id(module) in modules]
    if not owners:
        return None
    chain = {id(module): module for module, _ in owners}
    owner, method = owners[0]
    filename = caller.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    where = f"{filename}:{caller.f_lineno}"
    return Caller(caller, owner, method, tuple(chain.values()), where, _is_checkpointed(caller, method))


def _is_checkpointed(frame: types.FrameType | None, method: types.CodeType) -> bool:
    """Say whether a method has a call recomputed in the backward pass, when the method itself runs no more."""
    while frame is not None and frame.f_code is not method:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False


def running_modules(frame: types.FrameType | None) -> Iterator[tuple[nn.Module, types.CodeType]]:
    """Yield the modules whose methods are running: the first arguments of functions that are modules.

    Args:
        frame: Where to begin.

    Yields:
        Modules with the code of the method, the innermost first; of the model or not.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module):
                yield first, code
        frame = frame.f_back


Key = tuple[int, types.CodeType, Position | int, str]
"""Calling module, code, end of the expression (or the instruction), and what is called there."""


@dataclass
class Call:
    """One expression that calls an activation, with all that was seen of it.

    Args:
        owner: The module whose method makes the call.
        where: File and line.
        place: The expression; what stands in the way of writing it anew, if something does.
        specs: What it computed; more than one only if it calls different activations.
        name: What the site is called after, such as ``"gelu"``; empty for a module of the model, which has a name.
        known: The function that is called; of a module that is no part of the model, the one that it calls.
        count: How often it was reached.
        inputs: The inputs' shapes, without repetition.
        child: The name by which the owner, an ``nn.Sequential``, calls the module.
        holder: The module that holds the function as an attribute, if it is called through one.
        held: The name of the attribute.
        checkpointed: Whether ``torch.utils.checkpoint`` stands between the owner's method and the call.
        training_only: Whether only the pass in training mode reached it.
    """

    owner: nn.Module
    where: str
    place: CallPlace | str
    specs: list[ActivationSpec] = field(default_factory=list)
    name: str = ""
    known: KnownFunction | None = None
    count: int = 0
    inputs: list[torch.Size] = field(default_factory=list)
    child: str = ""
    holder: nn.Module | None = None
    held: str = ""
    checkpointed: bool = False
    training_only: bool = False

    def note(self, spec: ActivationSpec | None, x: Any, *, training: bool) -> None:
        """Note one call; what evaluation reaches too is counted there alone.

        Args:
            spec: What it computes.
            x: Its input.
            training: Whether the pass is in training mode.
        """
        self.count += training == self.training_only
        if spec is not None and spec not in self.specs:
            self.specs.append(spec)
        if isinstance(x, Tensor) and x.shape not in self.inputs:
            self.inputs.append(x.shape)


@dataclass
class Observation:
    """What was seen in two passes, one in evaluation mode and one in training mode.

    Args:
        functions: Calls of functions, of tensors' methods, and of activation modules that are no part of the model, in
            the order of the first.
        modules: Calls of every activation module, by its ``id``, in the order of the first.
        extents: By module and name of a function, the calls of it while a method of the module ran, those that
            activation modules make among them.
        training_error: Why the pass in training mode failed; empty if it did not.
    """

    functions: dict[Key, Call] = field(default_factory=dict)
    modules: dict[int, dict[Key, Call]] = field(default_factory=dict)
    extents: dict[tuple[int, str], set[Key]] = field(default_factory=dict)
    training_error: str = ""


def input_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the input of a call of an activation.

    Args:
        args: As called.
        kwargs: As called.

    Returns:
        The first argument, or the one called ``input`` or ``x``.
    """
    return args[0] if args else next((kwargs[key] for key in ("input", "x", "self") if key in kwargs), None)


def key_of(found: Caller, called: str) -> Key:
    """Return what tells the expression of a call from all others.

    Args:
        found: Where the call comes from.
        called: What is called there.

    Returns:
        The key.
    """
    code, instruction = found.frame.f_code, found.frame.f_lasti
    return id(found.owner), code, end_of(code, instruction) or instruction, called


def observe(
    model: nn.Module,
    input_sample: Any,
    table: FunctionTable,
    activations: Mapping[int, nn.Module],
    held: Mapping[int, Mapping[str, KnownFunction]],
    spec_of: Callable[[nn.Module], ActivationSpec | None],
) -> Observation:
    """Run a sample through a model in evaluation mode, then in training mode, and note every call of an activation.

    Modes, buffers and random number generators are as before afterwards. The second pass may fail: a model may want
    more for training, such as targets.

    Args:
        model: The model.
        input_sample: A tensor, a tuple of ``forward``'s arguments, or a dict of them by name.
        table: Which functions count.
        activations: The model's activation modules, by ``id``; what they call counts as theirs.
        held: By ``id`` of a module, its attributes that hold such a function.
        spec_of: Returns what a module computes, if it is an activation.

    Returns:
        What was seen.

    Raises:
        SwapError: If ``forward`` fails on the sample in evaluation mode.
    """
    watcher = _Watcher(model, table, activations, held, spec_of)
    hook = register_module_forward_pre_hook(watcher.note_module)
    try:
        with on_the_side(model), watcher:
            run(model, input_sample)
        watcher.start_training_pass()
        with on_the_side(model), training_branches(model), watcher:
            run(model, input_sample)
    except SwapError as error:
        if not watcher.training:
            raise
        watcher.seen.training_error = str(error.__cause__ or error)
    finally:
        hook.remove()
    return watcher.seen


class _Watcher(TorchFunctionMode):
    """Sees every call of a torch function, with the frame that makes it."""

    def __init__(
        self,
        model: nn.Module,
        table: FunctionTable,
        activations: Mapping[int, nn.Module],
        held: Mapping[int, Mapping[str, KnownFunction]],
        spec_of: Callable[[nn.Module], ActivationSpec | None],
    ) -> None:
        super().__init__()
        self.seen = Observation()
        self.training = False
        self._modules = {id(module): module for module in model.modules()}
        self._table = table
        self._activations = activations
        self._held = held
        self._spec_of = spec_of
        self._turns: dict[tuple[int, int], int] = {}
        self._foreign: dict[int, tuple[nn.Module, Key, Call]] = {}  # modules outside the model, as called last

    def start_training_pass(self) -> None:
        """Take what follows as seen in training mode."""
        self.training = True
        self._turns.clear()
        self._foreign.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        known = self._table.find_call(func, args, kwargs)
        if known is not None:
            self._note_function(known, args, kwargs, sys._getframe(1))
        return func(*args, **kwargs)

    def _note_function(
        self, known: KnownFunction, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType
    ) -> None:
        found = locate(frame, self._modules)
        if found is None:
            return
        running = (id(module) for module, _ in running_modules(found.frame))
        foreign = next((self._foreign[key] for key in running if key in self._foreign), None)
        key = key_of(found, known.name) if foreign is None else foreign[1]
        for module in found.chain:
            self.seen.extents.setdefault((id(module), known.name), set()).add(key)
        if any(id(module) in self._activations for module in found.chain):
            return  # it is that module's
        if foreign is not None:
            foreign[2].known = foreign[2].known or known
            return
        call = self.seen.functions.get(key)
        if call is None:
            call = Call(found.owner, found.where, self._place(found, known), name=known.name, known=known)
            call.checkpointed, call.training_only = found.checkpointed, self.training
            call.holder, call.held = self._held_as(found, call.place, known)
            self.seen.functions[key] = call
        call.note(self._table.spec(known, args, kwargs), input_of(args, kwargs), training=self.training)

    def _place(self, found: Caller, known: KnownFunction) -> CallPlace | str:
        """Return the expression of a call of a function, or why it cannot be written anew."""

        def is_callee(target: Any) -> bool:
            held = self._table.find_held(target)
            return target is known.function or (held is not None and held[0].name == known.name)

        name = known.function.__name__ if known.path.startswith("torch.Tensor.") else ""
        return _place_or_reason(functools.partial(call_place, found, is_callee, name))

    def _held_as(self, found: Caller, place: CallPlace | str, known: KnownFunction) -> tuple[nn.Module | None, str]:
        """Return the attribute through which a function is called; by its text, or if only one can be meant."""
        if isinstance(place, CallPlace):
            holder = holder_of(place, found)
            is_held = holder is not None and holder[1] in self._held.get(id(holder[0]), {})
            return holder if holder is not None and is_held else (None, "")
        held = self._held.get(id(found.owner), {})
        same = [name for name, other in held.items() if other.name == known.name]
        return (found.owner, same[0]) if len(same) == 1 else (None, "")

    def note_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note that an activation module is called; a hook before every module's forward."""
        known = id(module) in self._activations
        spec = None if known or id(module) in self._modules else self._spec_of(module)
        if not known and spec is None:
            return
        found = locate(sys._getframe(1), self._modules)
        if found is None or any(id(outer) in self._activations for outer in found.chain):
            return  # the model itself, or a part of another activation
        child = "" if spec is not None else self._turn(found.owner, module)
        name = "" if spec is None else spec.name.rpartition(".")[2].lower()
        key = key_of(found, child or name)
        calls = self.seen.functions if spec is not None else self.seen.modules.setdefault(id(module), {})
        if key not in calls:
            place = _place_or_reason(functools.partial(call_place, found, lambda target: target is module))
            calls[key] = Call(found.owner, found.where, place, name=name, child=child, training_only=self.training)
            calls[key].checkpointed = found.checkpointed
        calls[key].note(spec, input_of(args, {}), training=self.training)
        if spec is not None:
            self._foreign[id(module)] = (module, key, calls[key])

    def _turn(self, owner: nn.Module, module: nn.Module) -> str:
        """Return the name by which an ``nn.Sequential`` calls a module that it has under several."""
        if type(owner).forward is not nn.Sequential.forward:
            return ""
        names = _names_in(owner, module)
        turn = self._turns.get((id(owner), id(module)), 0)
        self._turns[id(owner), id(module)] = turn + 1
        return names[turn % len(names)]


def _names_in(owner: nn.Module, module: nn.Module) -> list[str]:
    return [name for name, child in owner._modules.items() if child is module]


def _place_or_reason(find: Callable[[], CallPlace]) -> CallPlace | str:
    try:
        return find()
    except SwapError as reason:
        return str(reason)
