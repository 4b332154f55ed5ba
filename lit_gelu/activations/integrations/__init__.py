"""Names of this registry in other libraries' configurations: ``registry.install("transformers")``.

A library is imported when it is asked for, never before. One file a library.
"""

from collections.abc import Callable, Mapping

from lit_gelu.activations.errors import UnknownLibraryError
from lit_gelu.activations.integrations import timm, transformers
from lit_gelu.activations.integrations.installation import Installation
from lit_gelu.activations.naming.names import Names, default_names

LIBRARIES: Mapping[str, Callable[[Names, bool], Installation]] = {
    "timm": timm.install,
    "transformers": transformers.install,
}

__all__ = ["LIBRARIES", "Installation", "default_names", "install"]


def install(registry: Names, library: str, *, override: bool = False) -> Installation:
    """Make a registry's names usable in another library; see `ActivationRegistry.install`.

    Args:
        registry: Whose names.
        library: Which library.
        override: Whether names that the library has too get this registry's meaning.

    Returns:
        What undoes it.

    Raises:
        UnknownLibraryError: If there is no integration with it.

    Example:
        >>> from lit_gelu.activations.registry import registry
        >>> install(registry, "flax")
        Traceback (most recent call last):
        lit_gelu.errors.ArgumentError: There is no integration with 'flax'. Accepted: \
'timm', 'transformers'.
    """
    if library not in LIBRARIES:
        accepted = ", ".join(map(repr, LIBRARIES))
        raise UnknownLibraryError(f"There is no integration with {library!r}. Accepted: {accepted}.")
    return LIBRARIES[library](registry, override)
