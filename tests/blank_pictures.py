"""Pictures that are files, but empty: to render one takes half a second, and most tests look at none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from lit_gelu.callbacks import trainer


def leave_blank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have figures made but not rendered, unless the test is marked ``pictures``."""
    if request.node.get_closest_marker("pictures") is not None:
        return
    render = Figure.savefig

    def save(figure: Figure, file: Any, **options: Any) -> None:
        if isinstance(file, (str, Path)):
            Path(file).touch()
        else:
            render(figure, file, **options)  # a part of a page

    monkeypatch.setattr(Figure, "savefig", save)
    monkeypatch.setattr(trainer, "_rendered", lambda _: np.zeros((1, 1, 3), np.uint8))
