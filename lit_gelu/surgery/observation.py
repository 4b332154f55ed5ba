"""One pass of a sample through a model, watched: which activations are called, by whom, and where in the code."""

import functools
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from lit_gelu.activations import ActivationSpec
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.functions import FunctionTable, KnownFunction
from lit_gelu.surgery.passes import on_the_side, run
from lit_gelu.surgery.places import CallPlace, Location, call_place, locate
from lit_gelu.surgery.source import Position, end_of

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
        known: The function, if it is one.
        count: How often it was reached.
        inputs: The inputs' shapes, without repetition.
        child: The name by which the owner, an ``nn.Sequential``, calls the module.
        held: The owner's attribute that holds the function, if it is called through one.
        checkpointed: Whether ``torch.utils.checkpoint`` stands between the owner's method and the call.
    """

    owner: nn.Module
    where: str
    place: CallPlace | str
    specs: list[ActivationSpec] = field(default_factory=list)
    known: KnownFunction | None = None
    count: int = 0
    inputs: list[torch.Size] = field(default_factory=list)
    child: str = ""
    held: str = ""
    checkpointed: bool = False

    def note(self, spec: ActivationSpec | None, x: Any) -> None:
        """Count one call.

        Args:
            spec: What it computes.
            x: Its input.
        """
        self.count += 1
        if spec is not None and spec not in self.specs:
            self.specs.append(spec)
        if isinstance(x, Tensor) and x.shape not in self.inputs:
            self.inputs.append(x.shape)


@dataclass
class Observation:
    """What was seen in one pass.

    Args:
        functions: Calls of functions and of tensors' methods, in the order of the first.
        modules: Calls of every activation module, by its ``id``, in the order of the first.
        extents: By module and name of a function, the calls of it while a method of the module ran, those that
            activation modules make among them.
    """

    functions: dict[Key, Call] = field(default_factory=dict)
    modules: dict[int, dict[Key, Call]] = field(default_factory=dict)
    extents: dict[tuple[int, str], set[Key]] = field(default_factory=dict)


def observe(
    model: nn.Module,
    input_sample: Any,
    table: FunctionTable,
    activations: Mapping[int, nn.Module],
    held: Mapping[int, Mapping[str, KnownFunction]],
) -> Observation:
    """Run a sample through a model in evaluation mode, and note every call of an activation.

    Modes, buffers and random number generators are as before afterwards.

    Args:
        model: The model.
        input_sample: A tensor, a tuple of ``forward``'s arguments, or a dict of them by name.
        table: Which functions count.
        activations: The model's activation modules, by ``id``; what they call counts as theirs.
        held: By ``id`` of a module, its attributes that hold such a function.

    Returns:
        What was seen.

    Raises:
        SwapError: If ``forward`` fails on the sample.
    """
    watcher = _Watcher(model, table, activations, held)
    hook = register_module_forward_pre_hook(watcher.note_module)
    try:
        with on_the_side(model), watcher:
            run(model, input_sample)
    finally:
        hook.remove()
    return watcher.seen


def input_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the input of a call of an activation.

    Args:
        args: As called.
        kwargs: As called.

    Returns:
        The first argument, or the one called ``input`` or ``x``.
    """
    return args[0] if args else next((kwargs[key] for key in ("input", "x", "self") if key in kwargs), None)


class _Watcher(TorchFunctionMode):
    """Sees every call of a torch function, with the frame that makes it."""

    def __init__(
        self,
        model: nn.Module,
        table: FunctionTable,
        activations: Mapping[int, nn.Module],
        held: Mapping[int, Mapping[str, KnownFunction]],
    ) -> None:
        super().__init__()
        self.seen = Observation()
        self._modules = {id(module): module for module in model.modules()}
        self._table = table
        self._activations = activations
        self._held = held
        self._turns: dict[tuple[int, int], int] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        known = self._table.find(func)
        if known is not None:
            self._note_function(known, args, kwargs, sys._getframe(1))
        return func(*args, **kwargs)

    def _note_function(
        self, known: KnownFunction, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType
    ) -> None:
        found = locate(frame, self._modules)
        if found is None:
            return
        key = key_of(found, known.name)
        for module in found.chain:
            self.seen.extents.setdefault((id(module), known.name), set()).add(key)
        if any(id(module) in self._activations for module in found.chain):
            return  # it is that module's
        call = self.seen.functions.get(key)
        if call is None:
            call = Call(found.owner, found.where, self._place(found, known), known=known)
            call.checkpointed = found.checkpointed
            call.held = self._held_as(found, call.place, known)
            self.seen.functions[key] = call
        call.note(self._table.spec(known, args, kwargs), input_of(args, kwargs))

    def _place(self, found: Location, known: KnownFunction) -> CallPlace | str:
        """Return the expression of a call of a function, or why it cannot be written anew."""

        def is_callee(target: Any) -> bool:
            held = self._table.find_held(target)
            return held is not None and held[0].name == known.name

        name = known.function.__name__ if known.path.startswith("torch.Tensor.") else ""
        return _place_or_reason(functools.partial(call_place, found, is_callee, name))

    def _held_as(self, found: Location, place: CallPlace | str, known: KnownFunction) -> str:
        """Return the attribute through which a function is called; by its text, or if only one can be meant."""
        held = self._held.get(id(found.owner), {})
        if isinstance(place, CallPlace):
            called = place.text.partition("(")[0]
            return next((name for name in held if called == f"{place.receiver}.{name}"), "")
        same = [name for name, other in held.items() if other.name == known.name]
        return same[0] if len(same) == 1 else ""

    def note_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note that an activation module is called; a hook before every module's forward."""
        if id(module) not in self._activations:
            return
        found = locate(sys._getframe(1), self._modules)
        if found is None or any(id(outer) in self._activations for outer in found.chain):
            return  # the model itself, or a part of another activation
        child = self._turn(found.owner, module)
        key = key_of(found, child)
        calls = self.seen.modules.setdefault(id(module), {})
        if key not in calls:
            place = _place_or_reason(functools.partial(call_place, found, lambda target: target is module))
            calls[key] = Call(found.owner, found.where, place, child=child)
        calls[key].note(None, input_of(args, {}))

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


def key_of(found: Location, called: str) -> Key:
    """Return what tells the expression of a call from all others.

    Args:
        found: Where the call comes from.
        called: What is called there.

    Returns:
        The key.
    """
    code, instruction = found.frame.f_code, found.frame.f_lasti
    return id(found.owner), code, end_of(code, instruction) or instruction, called
