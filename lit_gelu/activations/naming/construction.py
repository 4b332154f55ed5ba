"""What a module was built with, as its constructor was given it.

A spec is the text that an instance is built again from, so it takes the constructor's arguments, and not what became
of them: parameters are trained, a buffer may hold a logarithm, an attribute may have another name. So the constructor
of a registered class notes what it is given in the instance's ``__dict__``, which copies and pickles take along.
"""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations.naming.spec import NOT_IN_SPECS, PlainValue, dotted_path, plain_value
from lit_gelu.errors import ArgumentError, SpecError, message_of

NOTE = "_lit_gelu_construction"

_NOTING = "_lit_gelu_notes_arguments"
_MISSING = object()


def unfolded(target: functools.partial[Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return what a partial, of partials too, calls in the end, and the arguments that it gives."""
    called: Any = target
    positional: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    while isinstance(called, functools.partial):
        positional, keywords = (*called.args, *positional), {**called.keywords, **keywords}
        called = called.func
    return called, positional, keywords


def by_keyword(cls: type, positional: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a partial gives a class, all by keyword, as a spec has them."""
    if not positional or not issubclass(cls, nn.Module):  # refused elsewhere
        return keywords
    path = dotted_path(cls)
    try:
        signature = inspect.signature(cls)
        signature.bind_partial(*positional, **keywords)  # refuses what is given twice
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{path} cannot be built: {message_of(error)}.") from error
    arguments = signature.bind_partial(*positional).arguments
    if any(signature.parameters[name].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for name in arguments):
        raise ArgumentError(
            f"{path} takes arguments by position that have no keyword, so a functools.partial of it is not accepted. "
            "Give a torch.nn.Module that is built already."
        )
    return {**arguments, **keywords}


def note_constructions(cls: type[nn.Module]) -> None:
    """Have the constructor of a class note its arguments on every instance that is built from now on."""
    # The constructor is wrapped in place, once; its signature, documentation and behaviour stay. A subclass's instances
    # are not noted: what they are built from is their own constructor's matter. Classes of torch are left alone.
    init = cls.__init__
    notes_already = getattr(vars(cls).get("__init__"), _NOTING, None) is cls
    if notes_already or init is nn.Module.__init__ or cls.__module__.partition(".")[0] == "torch":
        return

    @functools.wraps(init)
    def noting(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if type(self) is cls:
            vars(self)[NOTE] = _note(self, init, args, kwargs)

    setattr(noting, _NOTING, cls)
    cls.__init__ = noting  # type: ignore[method-assign]


def noted(module: nn.Module, kwargs: dict[str, Any]) -> nn.Module:
    """Note what a module was built from, if its constructor did not."""
    if NOTE not in vars(module) and type(module).__init__ is not nn.Module.__init__:
        vars(module)[NOTE] = _note(module, type(module).__init__, (), kwargs)
    return module


def noted_arguments(module: nn.Module, names: tuple[str, ...]) -> dict[str, Any]:
    """Read the arguments that a module was built with."""
    # An argument that the constructor left as plain data in an attribute of its name is read there, so that a later
    # assignment counts. Of an instance without a note, because it was built before its class was registered, all of
    # them are read from such attributes.
    if (note := vars(module).get(NOTE)) is None:
        return {name: _plain_attribute(module, name, getattr(module, name, _MISSING)) for name in names}
    if note["arguments"] is None:
        raise SpecError(
            f"{type(module).__qualname__} was built with arguments that a spec cannot hold. Accepted: keyword "
            "arguments that are None, bool, int, float, str and tuples of these."
        )
    arguments = dict(note["arguments"])
    for name in note["mirrored"]:
        held = _held(module, name)
        if not isinstance(held, Tensor):  # which is learned: its present value is in the state_dict
            arguments[name] = _plain_attribute(module, name, held)
    return {name: value for name, value in arguments.items() if name in names}


def present_arguments(module: nn.Module, names: tuple[str, ...]) -> dict[str, Any]:
    """Read the arguments of a module's function as they are now, after what training may have moved."""
    initial, note = noted_arguments(module, names), vars(module).get(NOTE)
    if note is None:
        return initial
    present = {name: _held(module, name) for name in note["mirrored"] if name in initial}
    has_state = bool([*module.parameters(), *module.buffers()])
    unknown = ", ".join(sorted(initial.keys() - present.keys()))
    if unknown and has_state:  # the module itself still computes what it computes
        raise SpecError(f"Which tensors of {type(module).__qualname__} are {unknown} is not known.")
    return {**initial, **present}  # tensors of one element where an argument was put into a parameter of its name


def _note(module: nn.Module, init: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the note: the arguments, ``None`` if a spec cannot hold them, and which attributes mirror them."""
    unknown: dict[str, Any] = {"arguments": None, "mirrored": []}
    arguments: dict[str, PlainValue] = {}
    try:
        signature = inspect.signature(types.MethodType(init, module))
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            only_places = isinstance(value, dict) and NOT_IN_SPECS.issuperset(value)
            if name in NOT_IN_SPECS:
                continue
            if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
                arguments[name] = plain_value(value, name, "a constructor")
            elif value and value is not parameter.default and not only_places:
                return unknown  # it cannot be given by a keyword
    except (SpecError, TypeError, ValueError):  # no plain data; or a signature that is not to be had
        return unknown
    mirrored = [name for name, value in arguments.items() if _mirrors(_held(module, name), value)]
    return {"arguments": arguments, "mirrored": mirrored}


def _held(module: nn.Module, name: str) -> Any:
    """Return what a module holds under a name, without running a property's code."""
    places = (vars(module), module._parameters, module._buffers)
    return next((place[name] for place in places if name in place), _MISSING)


def _mirrors(held: Any, value: PlainValue) -> bool:
    """Say whether an attribute is an argument as it was given, as plain data or as a tensor of one element."""
    if isinstance(held, Tensor):
        plain = type(held) in {Tensor, nn.Parameter} and held.device.type != "meta" and held.numel() == 1
        if not plain or isinstance(value, bool) or not isinstance(value, (int, float)) or held.is_complex():
            return False
        return bool(held.detach().cpu() == torch.tensor(value).to(held.dtype))
    try:
        return plain_value(held, "", "") == value
    except SpecError:
        return False


def _plain_attribute(module: nn.Module, name: str, value: Any) -> PlainValue:
    try:
        return plain_value(value, name, type(module).__qualname__)
    except SpecError as error:
        raise SpecError(
            f"What {type(module).__qualname__} was built with is not known: its attribute {name!r} is no plain data. "
            "Register the class before instances are built."
        ) from error
