"""What a registry answers, and which one is asked by default: all that the mathematics knows of registries."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn

from lit_gelu.activations.naming.entry import ActivationEntry, Resolved
from lit_gelu.activations.naming.spec import ActivationSpec


class StoredNames(Protocol):
    """Looks up what a file says; see `StoredActivations`."""

    def create(self, spec: object) -> nn.Module:
        """Build a new module."""

    def resolve(self, spec: object) -> ActivationSpec:
        """Return a spec in canonical form."""


class Names(Protocol):
    """Looks activations up; see the methods of `ActivationRegistry`."""

    def create(self, spec: Any, **kwargs: Any) -> nn.Module:
        """Build a new module."""

    def resolve(self, spec: Any, **kwargs: Any) -> ActivationSpec:
        """Return a spec in canonical form."""

    def spec_of(self, module: nn.Module) -> ActivationSpec:
        """Return the canonical spec of a module."""

    def named(self, spec: ActivationSpec, kwargs: Mapping[str, Any]) -> Resolved:
        """Resolve the spec of a registered name, with further arguments."""

    def named_function(self, function: object, kwargs: Mapping[str, Any]) -> Resolved | None:
        """Resolve a function that a row is registered with, ``None`` if there is none."""

    def entry(self, name: str) -> ActivationEntry:
        """Return the row of a name or alias."""

    def entries(self) -> list[ActivationEntry]:
        """Return every row once."""

    def entry_of(self, module: nn.Module) -> ActivationEntry | None:
        """Return the row that a module belongs to."""

    def entry_of_class(self, cls: type) -> ActivationEntry | None:
        """Return the row whose modules are of a class."""

    def add(self, entry: ActivationEntry, *, override: bool = False) -> None:
        """Add one row."""

    @property
    def stored(self) -> StoredNames:
        """The same for specs out of files."""


_default: Names | None = None


def set_default_names(names: Names) -> None:
    """Say which registry is asked where none is given."""
    global _default
    _default = names


def default_names() -> Names:
    """Return the registry that is asked where none is given.

    Returns:
        `lit_gelu.activations.registry`.

    Raises:
        RuntimeError: If that has not been made yet.

    Example:
        >>> default_names().entry("soi").name
        'zero_identity_map'
    """
    if _default is None:
        raise RuntimeError("lit_gelu.activations is not imported yet, so there is no default registry.")
    return _default
