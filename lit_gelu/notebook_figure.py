"""A figure that notebooks show without ``%matplotlib inline``; imports matplotlib, which is an extra."""

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure made without pyplot, so that nothing global is changed, and shown by Jupyter as a PNG picture."""

    def _repr_png_(self) -> bytes:
        """Return the picture; Jupyter asks for it where matplotlib's own integration is not at work."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
