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
    """Import a library that only an extra brings; a `MissingExtraError` begins with what cannot be done without it."""
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
