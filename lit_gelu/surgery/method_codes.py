"""Whether a function that runs is a method of the module that it was given first, or a helper that was passed one."""

import functools
import types
import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn

# Two of three frames of a forward pass.
OF_EVERY_MODULE = frozenset({nn.Module._wrapped_call_impl.__code__, nn.Module._call_impl.__code__})
# Only methods are remembered: a class may be patched, and have later what it has not now.
_METHODS: weakref.WeakKeyDictionary[type, set[types.CodeType]] = weakref.WeakKeyDictionary()


def is_method_of(module: nn.Module, code: types.CodeType) -> bool:
    """Return whether a module's class has a function of a given code, or the module itself one bound to it."""
    cls = type(module)
    methods = _METHODS.setdefault(cls, set())
    if code in methods:
        return True
    if _is_under_its_name(cls, code) or _is_in_class(cls, code):
        methods.add(code)
        return True
    bound = [value for value in tuple(vars(module).values()) if _is_bound_to(module, value)]
    return any(function.__code__ is code for value in bound for function in _functions_of(value))


def _is_under_its_name(cls: type, code: types.CodeType) -> bool:
    """Return whether a class has a function where its name says, and undecorated, as most are."""
    for owner in cls.__mro__:
        value = vars(owner).get(code.co_name)
        if isinstance(value, types.FunctionType) and value.__code__ is code:
            return True
    return False


def _is_in_class(cls: type, code: types.CodeType) -> bool:
    every = (value for owner in cls.__mro__ for value in tuple(vars(owner).values()))
    return any(function.__code__ is code for value in every for function in _functions_of(value))


def _is_bound_to(module: nn.Module, value: Any) -> bool:
    if isinstance(value, types.MethodType):
        return value.__self__ is module
    return isinstance(value, functools.partial) and bool(value.args) and value.args[0] is module


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """Yield the functions that get the module first when an attribute is used, and those that decorators wrap."""
    # A static method is not among them: which module it is given first is up to the caller.
    waiting, seen = [value], set[int]()
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen or isinstance(current, (staticmethod, classmethod, type)):
            continue
        seen.add(id(current))
        match current:
            case types.FunctionType():
                yield current
            case types.MethodType():
                waiting.append(current.__func__)
            case property():
                waiting += [current.fget, current.fset]
            case functools.partial() | functools.partialmethod() | functools.cached_property():
                waiting.append(current.func)
        waiting.append(getattr(current, "__dict__", {}).get("__wrapped__"))
