"""The default registry: what `lit_gelu.activations.create` and its neighbours use."""

from collections.abc import Callable
from typing import Any, Self

from lit_gelu.activations.entry import ActivationEntry
from lit_gelu.activations.families import ENTRIES
from lit_gelu.activations.names import set_default_names
from lit_gelu.activations.registry import ActivationRegistry


class _DefaultRegistry(ActivationRegistry):
    """One in a process: a copy is itself, and in another process it becomes the one there, with what was added."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _default_with, (tuple(entry for entry in self.entries() if entry not in ENTRIES),)


def _default_with(added: tuple[ActivationEntry, ...]) -> ActivationRegistry:
    """Return this process's default registry, with the rows of another process's that it lacks."""
    here = registry.entries()
    for entry in added:
        if entry not in here:
            registry.add(entry, override=True)
    return registry


registry: ActivationRegistry = _DefaultRegistry(entry_points=True)
set_default_names(registry)
