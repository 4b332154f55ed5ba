"""Runs a sample through a model and watches it: the frames from which activations are called."""

import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from lit_gelu.activations import ActivationSpec
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.functions import FunctionTable, KnownFunction
from lit_gelu.surgery.locations import Location, locate, running_modules
from lit_gelu.surgery.observation import Call, Key, Observation, input_of, key_of
from lit_gelu.surgery.passes import on_the_side, run, training_branches
from lit_gelu.surgery.places import CallPlace, call_place, holder_of


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

    def _place(self, found: Location, known: KnownFunction) -> CallPlace | str:
        """Return the expression of a call of a function, or why it cannot be written anew."""

        def is_callee(target: Any) -> bool:
            held = self._table.find_held(target)
            return target is known.function or (held is not None and held[0].name == known.name)

        name = known.function.__name__ if known.path.startswith("torch.Tensor.") else ""
        return _place_or_reason(functools.partial(call_place, found, is_callee, name))

    def _held_as(self, found: Location, place: CallPlace | str, known: KnownFunction) -> tuple[nn.Module | None, str]:
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
