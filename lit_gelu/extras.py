"""Libraries that only some parts need: each comes with an extra of ``pip install 'lit-gelu[EXTRA]'``."""

import importlib
from types import ModuleType

from lit_gelu.errors import MissingExtraError

__all__ = ["MissingExtraError", "need"]


def need(library: str, *, extra: str, what: str, remark: str = "") -> ModuleType:
    """Import a library that only an extra brings.

    Args:
        library: The name to import, such as ``matplotlib``.
        extra: The extra of ``pyproject.toml`` that brings it.
        what: What cannot be done without the library; the message begins with it.
        remark: What the message ends with, such as another way.

    Returns:
        The imported module.

    Raises:
        MissingExtraError: If it cannot be imported. The message names the extra.

    Example:
        >>> need("no_such_library", extra="plots", what="The plot")
        Traceback (most recent call last):
        lit_gelu.errors.MissingExtraError: The plot needs no_such_library, which cannot be imported (No module named \
'no_such_library'). Install it: pip install 'lit-gelu[plots]'
    """
    try:
        return importlib.import_module(library)
    except (ImportError, OSError) as error:  # OSError: the package is there, a shared library that it loads is not
        end = f". {remark}" if remark else ""
        raise MissingExtraError(
            f"{what} needs {library}, which cannot be imported ({error}). "
            f"Install it: pip install 'lit-gelu[{extra}]'{end}"
        ) from error
