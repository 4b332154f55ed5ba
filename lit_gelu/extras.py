"""Libraries that only some parts need: each comes with an extra of ``pip install 'lit-gelu[EXTRA]'``."""

import importlib
import io
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lit_gelu.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MissingExtraError", "need", "new_figure"]


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


def new_figure(what: str, **options: Any) -> "Figure":
    """Return a figure made without pyplot, so that nothing global is changed; notebooks show it as a PNG picture."""
    need("matplotlib", extra="plots", what=what)
    from matplotlib.figure import Figure  # takes half a second, and is not needed without a picture

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:  # Jupyter asks for it where matplotlib's own integration is not at work
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return NotebookFigure(**options)
