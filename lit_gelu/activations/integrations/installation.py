"""What a registry's names in another library have in common: import, install once, undo."""

import importlib
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Self

from torch import nn

from lit_gelu.activations.errors import ActivationSpecError, AlreadyInstalledError, MissingLibraryError
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.spec import ActivationSpec

_LITERALS = re.compile(r"(?<==)\s*(true|false|none)\s*(?=[,)])")
_installed: dict[str, "Installation"] = {}


class Installation:
    """A registry's names in another library, until `uninstall` is called or its ``with`` block ends.

    Args:
        library: The library.
        registry: Whose names they are.
        override: Whether the library's own names got this registry's meaning.
        undo: Brings the library back to what it was.
    """

    def __init__(self, library: str, registry: Names, override: bool, undo: Callable[[], None]) -> None:
        self.library = library
        self.registry = registry
        self.override = override
        self._undo = undo
        _installed[library] = self

    @property
    def active(self) -> bool:
        """Whether the names are there."""
        return _installed.get(self.library) is self

    def uninstall(self) -> None:
        """Bring the library back to what it was; models that are built already keep their activations."""
        if self.active:
            self._undo()
            del _installed[self.library]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        return f"Installation({self.library!r}, override={self.override}, active={self.active})"


def present(library: str, registry: Names, override: bool) -> Installation | None:
    """Return the installation that is there already, so that installing twice is installing once."""
    installation = _installed.get(library)
    if installation is not None and (installation.registry is not registry or installation.override != override):
        raise AlreadyInstalledError(
            f"{library} has the names of {installation.registry!r} with override={installation.override} already. Call "
            "uninstall() of what install() returned there first."
        )
    return installation


def names_of(registry: Names) -> list[str]:
    """Return every name and alias of a registry."""
    return sorted({name for entry in registry.entries() for name in (entry.name, *entry.aliases)})


def added_since(table: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what others have put into a table that had this content when it was installed."""
    return {key: value for key, value in table.items() if key not in content or content[key] is not value}


def function_module(registry: Names, spec: ActivationSpec, layer: str) -> nn.Module:
    """Build what a library calls as a function; what only a layer can be is refused, with how to make one there."""
    module, why = registry.create(spec), ""
    if any(True for _ in module.parameters()):
        why = "has parameters, which nobody would train"
    elif registry.entry(spec.name).facts_for(spec.arguments).stochastic:
        why = "draws random numbers in training, and is not told when training ends"
    if why:
        raise ActivationSpecError(f"{str(spec)!r} {why}: it cannot be a function. Use it as a layer: {layer}.")
    return module


def is_path(text: str) -> bool:
    """Return whether a text is a dotted path: what a configuration file names is looked up, never imported."""
    return "." in text.partition("(")[0]


def from_lower_case(text: str) -> str:
    """Return a spec as it was meant: some libraries put names into lower case, ``learnable=True`` included."""
    return _LITERALS.sub(lambda match: match[1].capitalize(), text)


def import_library(name: str, library: str) -> ModuleType:
    """Import a module of another library."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingLibraryError(f"Cannot import {name}: {error}. Install it: pip install {library}.") from error
