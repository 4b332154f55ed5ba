"""From a dotted path to what it names. `import_object` is the one place where the text of a spec becomes an import.

What reads files does not come here: it asks `Names.create` and `Names.resolve` with ``trusted=False``.
"""

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from lit_gelu.errors import SpecError, shown

_specs_of_caller: ContextVar[tuple[object, ...] | None] = ContextVar("specs given beside a file", default=None)


def import_object(path: object) -> Any:
    """Import the class or function that a dotted path names; what cannot be imported raises `SpecError`."""
    if not isinstance(path, str) or "." not in path or not all(map(str.isidentifier, path.split("."))):
        raise SpecError(f"class_path={shown(path)} is no dotted path. Write 'package.module.ClassName'.")
    module_path, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_path), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(
            f"Cannot import {shown(path)}: {error}. Is the package installed and the name right?"
        ) from error


def imported_object(path: object) -> Any:
    """Return what a dotted path names in a module that is imported already, ``None`` if there is nothing."""
    module_name, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    module = sys.modules.get(module_name)
    return None if module is None else vars(module).get(name)  # not getattr: a module's __getattr__ may import


@contextmanager
def building_from_file(specs: Iterable[object] = ()) -> Iterator[None]:
    """Take every spec that `create` is given within as one out of a file, as with ``trusted=False``.

    For the construction of a module with arguments that a file holds, where the constructor cannot tell whence they
    come. `lit_gelu.callbacks.load_from_checkpoint` and the tasks of `lit_gelu.tasks` do so. It holds for the present
    thread. Classes, functions and modules, which no file can hold, are code's own within it, too.

    Args:
        specs: Specs that the caller gives beside the file; these may be dotted paths.

    Example:
        >>> from lit_gelu.activations import create
        >>> with building_from_file(specs=["torch.nn.Softsign"]):
        ...     create("torch.nn.Softsign")
        Softsign()
    """
    token = _specs_of_caller.set(tuple(specs))
    try:
        yield
    finally:
        _specs_of_caller.reset(token)


def comes_from_file(spec: object) -> bool:
    """Return whether a text or mapping may come from a file: within `building_from_file`, unless its caller gave it."""
    specs = _specs_of_caller.get()
    return specs is not None and not any(type(spec) is type(one) and spec == one for one in specs)
