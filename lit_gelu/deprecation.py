"""Old names that still work for one release, and the warning that says what to write instead."""

import functools
import importlib
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

REMOVED_IN = "0.3"  # the release whose code no longer knows the names that are old today; a test fails when it comes

P = ParamSpec("P")
R = TypeVar("R")


class LitGeluDeprecationWarning(FutureWarning):
    """A name that the next release no longer knows was used."""

    # A FutureWarning, because Python shows those to people who run a program; a DeprecationWarning it hides.


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warn that something is called by its old name; ``stacklevel`` counts from the caller of this function."""
    message = f"{old} is deprecated and goes with lit-gelu {REMOVED_IN}: write {new}."
    warnings.warn(message, LitGeluDeprecationWarning, stacklevel=stacklevel + 1)


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function, or ``__init__``, take keyword arguments by their old names too: ``old="new"``."""
    # The signature that `inspect` and jsonargparse see has the new names alone. Both names at once are a TypeError.

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        shown = function.__qualname__.removesuffix(".__init__").removeprefix("<locals>.")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in names.keys() & kwargs.keys():
                if names[old] in kwargs:
                    raise TypeError(f"{shown}() got {names[old]}= and {old}=, its old name. Leave {old}= out.")
                warn_renamed(f"{shown}({old}=)", f"{names[old]}=")
                kwargs[names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_names(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Return a module's ``__getattr__`` that finds what was renamed or moved: old name to ``"package.module:Name"``."""

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].partition(":")
        warn_renamed(f"{module}.{name}", f"{place}.{new}")
        return getattr(importlib.import_module(place), new)

    return find


def renamed_attributes(**names: str) -> Callable[[object, str], Any]:
    """Return a class's ``__getattr__`` that finds what its instances have elsewhere now: ``old="place.new"``."""

    def find(self: object, name: str) -> Any:
        shown = type(self).__name__
        if name not in names:
            raise AttributeError(f"{shown!r} object has no attribute {name!r}")
        warn_renamed(f"{shown}.{name}", f"{shown}.{names[name]}")
        return operator.attrgetter(names[name])(self)

    return find
