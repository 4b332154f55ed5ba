"""What a checkpoint's hyper-parameters would import, were they read as a configuration by jsonargparse."""

import enum
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal, Union

import yaml

from lit_gelu.activations import StoredSpecError, registry
from lit_gelu.errors import LitGeluError, shown

_SCALARS = (str, bytes, int, float, complex, bool, type(None))
_CONTAINERS = (Union, types.UnionType, list, tuple, set, dict, Sequence, Mapping, Iterable, Collection)
_DEPTH, _SIZE = 32, 100_000


def require_no_imports(found: Mapping[str, Any], module_class: type, given: Collection[object], called: str) -> None:
    """Refuse hyper-parameters of a file that jsonargparse would import a class or function for.

    Args:
        found: The hyper-parameters, as the file holds them.
        module_class: The class that they are arguments of: where it asks for a text, a text is nothing else.
        given: Texts that the caller's own configuration holds too; what it names may be imported.
        called: How to call the file in an error.

    Raises:
        StoredSpecError: If one of them names something to import. Specs of registered activations do not.
    """
    hints = _hints(module_class)
    for argument, value in found.items():
        if _takes_no_object(hints.get(argument, object)) or _is_registered(value):
            continue
        for name in names_within({argument: value}):
            if name not in given:
                raise StoredSpecError(
                    f"{called} has {shown(name)} in its hyper-parameter {shown(argument)}. What a file names is not "
                    f"imported: give {argument} yourself, in code, on the command line (--model.{argument}) or in "
                    "YAML, if you trust it."
                )


def names_within(value: object) -> Iterator[object]:
    """Yield what jsonargparse might take for the name of something to import, or for a file to read.

    Args:
        value: Plain data.

    Yields:
        Class paths, dotted paths, names of files, and what is nested too deep or too large to be looked through.

    Example:
        >>> list(names_within({"loss": {"class_path": "my.Loss"}, "kind": "{class_path: Hidden}", "width": 3}))
        ['Hidden', 'my.Loss']
    """
    waiting, looked_at = [(value, 0)], 0
    while waiting:
        one, depth = waiting.pop()
        looked_at += 1
        if depth > _DEPTH or looked_at > _SIZE:  # also what holds itself, and what YAML's aliases make of a few lines
            yield one
            return
        match one:
            case str():
                names, inside = _read_text(one)
                yield from names
                waiting.append((inside, depth + 1))
            case Mapping():
                named = {
                    key: inner for key, inner in one.items() if str(key).rpartition(".")[2].strip("_") == "class_path"
                }
                yield from named.values()
                waiting += [(inner, depth + 1) for key, inner in one.items() if key not in named]
            case list() | tuple() | set() | frozenset():
                waiting += [(inner, depth + 1) for inner in one]


def _read_text(text: str) -> tuple[list[object], object]:
    """Return the names that a text is, and what it holds where it is YAML."""
    if "." in text and all(part.isidentifier() for part in text.split(".")):
        return [text], None
    try:
        if Path(text).exists():
            return [text], None
        parsed = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OSError, RecursionError):
        return [], None
    return [], parsed if isinstance(parsed, list | dict) else None


def _is_registered(value: object) -> bool:
    """Say whether a value is the spec of a registered activation."""
    try:
        return bool(registry.stored.resolve(value))
    except LitGeluError:
        return False


def _hints(module_class: type) -> dict[str, Any]:
    """Return the types of a constructor's arguments, as far as they are known."""
    try:
        return typing.get_type_hints(module_class.__init__)  # type: ignore[misc]  # of a class, to read only
    except (NameError, TypeError, AttributeError):
        return {}


def _takes_no_object(hint: Any) -> bool:
    """Say whether a type holds only numbers and texts, so that a text is never a name."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return True
    if origin in _CONTAINERS:
        return all(inner is Ellipsis or _takes_no_object(inner) for inner in typing.get_args(hint))
    return hint in _SCALARS or (isinstance(hint, type) and issubclass(hint, PurePath | enum.Enum))
