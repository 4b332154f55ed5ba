"""Which of torch's functions are activations; and a sample run on the side, watched for who calls one, and where."""

import contextlib
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.display import Displayed
from lit_gelu.errors import LitGeluError, SwapError
from lit_gelu.sandbox import as_written, evaluation_sandbox, isolated_random_state
from lit_gelu.surgery.source import CallPlace, Origin, Position, call_place, holder_of

_PASSED_OVER = frozenset({
    "torch._compile",
    "torch._dynamo.eval_frame",
    "torch._jit_internal",
    "torch._ops",
    "torch.nn.functional",
    "torch.nn.modules.module",
    "torch.overrides",
})  # torch's own wrappers

Key = tuple[int, types.CodeType, Position | int, str]
"""Calling module, code, end of the expression (or the instruction), and what is called there."""


_PLACES = (F, torch, Tensor, torch._C._nn)
_SAME = {"sigmoid": (torch.special.expit,)}  # under another name
_INPUTS = ("input", "x", "self")


@dataclass(frozen=True)
class KnownFunction:
    """A function of torch that is an activation: a row of the registry names it, or one that torch has like it."""

    function: Callable[..., Any]  # the function, or the tensor's method
    entry: ActivationEntry
    # From a call's arguments to those of a spec, where they are others.
    read: Callable[..., dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        """The canonical name of the activation."""
        return self.entry.name

    @functools.cached_property
    def facts(self) -> ActivationFacts:
        """What the row states of the activation; asked once the function is met."""
        return self.entry.facts_for(self.entry.preset.arguments if self.entry.preset else {})

    @property
    def path(self) -> str:
        """Where the function is found, such as ``torch.nn.functional.gelu`` or ``torch.Tensor.relu``."""
        name = str(getattr(self.function, "__name__", self.name))
        for place in _PLACES:
            if getattr(place, name, None) is self.function:
                return f"{'torch.Tensor' if place is Tensor else place.__name__}.{name}"
        return f"{getattr(self.function, '__module__', 'torch')}.{name}"

    def arguments_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without the input."""
        if self.read is not None:
            names = tuple(inspect.signature(self.read).parameters)
        elif inspect.isfunction(self.function):
            names = tuple(inspect.signature(self.function).parameters)[1:]
        else:
            names = tuple(name for name in self.entry.parameters if name != "inplace")
        by_name = {key: value for key, value in kwargs.items() if key not in {*_INPUTS, "_stacklevel"}}
        positional = args if any(key in kwargs for key in _INPUTS) else args[1:]
        overwrites = str(getattr(self.function, "__name__", "")).endswith("_")
        return dict(zip(names, positional, strict=False)) | by_name | ({"inplace": True} if overwrites else {})


class FunctionTable:
    """The functions of torch that a registry's activations are the same as, under all names that torch has for them."""

    # The rows of the registry name functions (``F.relu``, ``torch.relu``, ...); torch has the same as tensors' methods
    # and with an underscore for the one that overwrites its input, which are found by their name.

    def __init__(self, registry: ActivationRegistry) -> None:
        self.registry = registry
        self._functions: dict[Any, KnownFunction] = {}
        for entry in registry.entries():
            for function, read in {**dict.fromkeys(entry.functions), **entry.calls}.items():
                for form in _forms(function):
                    self._functions.setdefault(form, KnownFunction(form, entry, read))

    def find(self, function: Any) -> KnownFunction | None:
        """Return what is known of a function, ``None`` if an object is no activation."""
        try:
            match = self._functions.get(function)
        except TypeError:  # it has no hash
            return None
        return None if match is None or match.facts.halves else match  # no other could stand for GLU

    def find_held(self, value: Any) -> tuple[KnownFunction, dict[str, Any]] | None:
        """Return what is known of an attribute's value, a function or a partial, and the arguments bound to it."""
        partial = isinstance(value, functools.partial) and not value.args
        row = self.find(value.func if partial else value)
        return None if row is None else (row, dict(value.keywords) if partial else {})

    def spec(self, function: KnownFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ActivationSpec:
        """Return the canonical spec of one call; for arguments that are no plain data an opaque one."""
        arguments = function.arguments_of(args, kwargs)
        try:
            if function.read is not None:
                arguments = function.read(**arguments)
            return self.registry.resolve(ActivationSpec.of(function.name, **arguments))
        except LitGeluError:
            pass  # a tensor as an argument, or one that the activation's module does not have: not to be rebuilt
        plain = {key: value for key, value in arguments.items() if isinstance(value, (bool, int, float, str))}
        return ActivationSpec(function.path, tuple(plain.items()), opaque=True)


@functools.lru_cache(maxsize=256)
def _forms(function: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Return a function with the others that torch has under its name, with and without a trailing underscore."""
    if str(getattr(function, "__module__", "")).partition(".")[0] != "torch":
        return (function,)
    name = function.__name__.rstrip("_")
    forms = [function, *_SAME.get(name, ())]
    for place in _PLACES:
        forms += filter(callable, (getattr(place, name, None), getattr(place, f"{name}_", None)))
    return tuple(forms)


def run(model: nn.Module, input_sample: Any) -> Any:
    """Call a model with a copy of a sample, which it may overwrite; `SwapError` if it fails."""
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
            "tuple of forward's arguments or a dict of them by name, on the model's device and in its dtype."
        ) from error


@contextlib.contextmanager
def on_the_side(model: nn.Module, *, training: bool = False) -> Iterator[None]:
    """Let a pass leave no trace: evaluation mode, no gradients, random state and buffers put back, nothing compiled."""
    with isolated_random_state(model), evaluation_sandbox(model), as_written():
        if training:  # the flags are put back by the sandbox
            for module in model.modules():
                # Dropout and batch normalisation have no branches, and a sample of one example would not do for them.
                module.training = not isinstance(module, (_NormBase, _DropoutNd))
        yield


@contextlib.contextmanager
def before_every_module(note: Callable[[nn.Module, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call a function before every module's forward; unlike a module's own hooks, it leaves fused paths on."""
    handle = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


def locate(frame: types.FrameType, modules: Mapping[int, Any]) -> Origin | None:
    """Find out which of a model's modules, given by ``id``, makes a call; ``None`` if no method of one is running."""
    inner: types.FrameType | None = frame
    while inner is not None and inner.f_globals.get("__name__") in _PASSED_OVER:
        inner = inner.f_back
    running: list[nn.Module] = []
    chain: dict[int, nn.Module] = {}
    method, outer = None, inner
    while outer is not None and outer.f_code is not run.__code__:  # who runs the sample is no part of the model
        code = outer.f_code
        itself = outer.f_locals.get("self") if code.co_argcount and code.co_varnames[0] == "self" else None
        if isinstance(itself, nn.Module):
            running.append(itself)
            if id(itself) in modules:
                chain[id(itself)] = itself
                method = method or code
        outer = outer.f_back
    if inner is None or method is None:
        return None
    code, owner = inner.f_code, next(iter(chain.values()))
    names = {"self", *code.co_freevars, *code.co_cellvars}
    position = next(itertools.islice(code.co_positions(), inner.f_lasti // 2, None), (None,) * 4)
    _, end_line, _, end_column = position  # of the expression to which the instruction belongs
    filename = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return Origin(
        owner=owner,
        method=method,
        code=code,
        instruction=inner.f_lasti,
        end=None if end_line is None or end_column is None else (end_line, end_column),
        variables={name: value for name, value in inner.f_locals.items() if name in names},
        variables_of_file=inner.f_globals,
        running=tuple(running),
        chain=tuple(chain.values()),
        where=f"{filename}:{inner.f_lineno}",
    )


def key_of(origin: Origin, called: str) -> Key:
    """Return what tells the expression of a call from all others."""
    return id(origin.owner), origin.code, origin.end or origin.instruction, called


@dataclass(eq=False, repr=False)
class ActivationCall(Displayed):
    """One expression that calls an activation, with all that was seen of it.

    Attributes:
        name: The site's name, with ``#0``, ``#1``, ... if it is called from several places.
        caller: The fully qualified name of the module whose method makes the call.
        where: File and line.
        count: How often the sample reached it, in one pass.
        inputs: The inputs' shapes, without repetition.
        training_only: Whether only the pass in training mode reached it.
    """

    owner: nn.Module  # the module whose method makes the call
    where: str
    # Finds the expression; reading the source takes long, and few calls are written anew.
    find_place: Callable[[], CallPlace]
    training_only: bool
    # What the site is called after, such as ``"gelu"``; empty for a module of the model, which has a name.
    called: str = ""
    child: str = ""  # the name by which the owner, an ``nn.Sequential``, calls the module
    holder: nn.Module | None = None  # the module that holds the function as an attribute, if it is called through one
    held: str = ""  # the name of the attribute
    # What it computed; more than one only if it calls different activations.
    specs: list[ActivationSpec] = field(default_factory=list)
    count: int = 0
    inputs: tuple[torch.Size, ...] = ()
    name: str = ""
    caller: str = ""

    @functools.cached_property
    def place(self) -> CallPlace | str:
        """The expression; what stands in the way of writing it anew, if something does."""
        try:
            return self.find_place()
        except SwapError as reason:
            return str(reason)

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle what is found, not how: that holds the globals of the calling code."""
        return {**vars(self), "place": self.place, "find_place": None}

    def note(self, spec: ActivationSpec | None, x: Any, *, training: bool) -> None:
        """Note one call of what a spec says on an input; what evaluation reaches too is counted there alone."""
        self.count += training == self.training_only
        if spec is not None and spec not in self.specs:
            self.specs.append(spec)
        if isinstance(x, Tensor) and x.shape not in self.inputs:
            self.inputs += (x.shape,)

    def __str__(self) -> str:
        only = ", in training alone" if self.training_only else ""
        return f"{self.name} at {self.where}, {self.count} time{'s' * (self.count != 1)}{only}"

    _summary = __str__


class CallWatcher(TorchFunctionMode):
    """Sees every call of an activation in two passes, with the frame that makes it."""

    def __init__(
        self,
        model: nn.Module,
        table: FunctionTable,
        activations: KeysView[int],  # of the model, by `id`: what they call counts as theirs
        held: Mapping[int, Mapping[str, tuple[KnownFunction, ActivationSpec]]],  # by `id` of a module and attribute
        spec_of: Callable[[nn.Module], ActivationSpec | None],  # what a module computes, if it is an activation
    ) -> None:
        super().__init__()
        # Calls of functions, of tensors' methods, and of activation modules that are no part of the model, in the order
        # of the first.
        self.functions: dict[Key, ActivationCall] = {}
        # Calls of every activation module, by its ``id``, in the order of the first.
        self.modules: dict[int, dict[Key, ActivationCall]] = {}
        self.training_error = ""  # why the pass in training mode failed; empty if it did not
        self._model = model
        self._training = False
        self._modules = {id(module): module for module in model.modules()}
        self._table = table
        self._activations = activations
        self._held = held
        self._spec_of = spec_of
        self._turns: dict[tuple[int, int], int] = {}
        self._foreign: dict[int, nn.Module] = {}  # activation modules outside the model

    def observe(self, input_sample: Any) -> None:
        """Run a sample through the model in evaluation mode, then in training mode, and note every call."""
        # The second pass may fail: a model may want more for training, such as targets.
        with before_every_module(self.note_module):
            with on_the_side(self._model), self:
                run(self._model, input_sample)
            self._training = True
            self._turns.clear()
            self._foreign.clear()
            try:
                with on_the_side(self._model, training=True), self:
                    run(self._model, input_sample)
            except SwapError as error:
                self.training_error = str(error.__cause__ or error)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        # What writes to a tensor of the model's (``out=``) is no site: no module would.
        function = self._table.find(func) if kwargs.get("out") is None else None
        origin = None if function is None else locate(sys._getframe(1), self._modules)
        if function is None or origin is None:
            return func(*args, **kwargs)
        running = {id(module) for module in origin.running}
        if not running.isdisjoint(self._activations) or not running.isdisjoint(self._foreign):
            return func(*args, **kwargs)  # it is a part of what that module computes
        key = key_of(origin, function.name)
        if (call := self.functions.get(key)) is None:

            def is_callee(target: Any) -> bool:
                held = self._table.find_held(target)
                return target is function.function or (held is not None and held[0].name == function.name)

            method = function.function.__name__ if function.path.startswith("torch.Tensor.") else ""
            find_place = functools.partial(call_place, origin, is_callee, method)
            call = ActivationCall(origin.owner, origin.where, find_place, self._training, called=function.name)
            if self._held:
                call.holder, call.held = self._held_as(origin, call.place, function)
            self.functions[key] = call
        call.note(self._table.spec(function, args, kwargs), input_of(args, kwargs), training=self._training)
        return func(*args, **kwargs)

    def _held_as(self, origin: Origin, place: CallPlace | str, function: KnownFunction) -> tuple[nn.Module | None, str]:
        """Return the attribute through which a function is called; by its text, or if only one can be meant."""
        if isinstance(place, CallPlace):
            holder = holder_of(place, origin)
            is_held = holder is not None and holder[1] in self._held.get(id(holder[0]), {})
            return holder if holder is not None and is_held else (None, "")
        held = self._held.get(id(origin.owner), {})
        same = [name for name, (other, _) in held.items() if other.name == function.name]
        return (origin.owner, same[0]) if len(same) == 1 else (None, "")

    def note_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note that an activation module is called; a hook before every module's forward."""
        of_model = id(module) in self._activations
        spec = None if of_model or id(module) in self._modules else self._spec_of(module)
        if not of_model and spec is None:
            return
        origin = locate(sys._getframe(1), self._modules)
        if origin is None or not self._activations.isdisjoint(map(id, origin.chain)):
            return  # the model itself, or a part of another activation
        child, owner = "", origin.owner
        if spec is None and type(owner).forward is nn.Sequential.forward:
            # It may have the module under several names, by which it calls it in turn.
            names = [name for name, each in owner._modules.items() if each is module]
            turn = self._turns.get((id(owner), id(module)), 0)
            self._turns[id(owner), id(module)] = turn + 1
            child = names[turn % len(names)]
        name = "" if spec is None else spec.name.rpartition(".")[2].lower()
        key = key_of(origin, child or name)
        calls = self.functions if spec is not None else self.modules.setdefault(id(module), {})
        if key not in calls:
            find_place = functools.partial(call_place, origin, lambda target: target is module)
            calls[key] = ActivationCall(owner, origin.where, find_place, self._training, name, child)
        calls[key].note(spec, input_of(args, {}), training=self._training)
        if spec is not None:
            self._foreign[id(module)] = module


def input_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the input of a call of an activation: the first argument, or the one called input, x or self."""
    return args[0] if args else next((kwargs[key] for key in ("input", "x", "self") if key in kwargs), None)
