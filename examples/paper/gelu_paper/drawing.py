"""What all figures share: colours, frames, legends, captions, and how they are written."""

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lit_gelu.files import write_atomically

# Okabe and Ito's palette; Tol's wine red in the place of its purple, which looks like the blue to who sees no red.
COLOURS = {
    "gelu": "#0072B2",
    "relu": "#D55E00",
    "elu": "#009E73",
    "silu": "#882255",
    "zero_identity": "#E69F00",
    "gelu_tanh": "#56B4E9",
    "gelu_sigmoid": "#000000",
}
NAMES = {
    "gelu": "GELU",
    "relu": "ReLU",
    "elu": "ELU",
    "silu": "SiLU",
    "zero_identity": "0-I map",
    "gelu_tanh": "GELU, tanh",
    "gelu_sigmoid": "GELU, sigmoid",
}
DARK_WIDTH, LIGHT_WIDTH = 1.6, 1.2
_LIGHT = 0.45  # how much of its colour a light curve keeps; the rest is white
# The layout, in inches: a legend below the panels is nothing that matplotlib's own layouts leave room for.
_ONE_PANEL, _TWO_PANELS = (6.2, 3.1), (9.2, 2.7)  # a figure's width, a panel's height
_LEFT, _RIGHT, _EDGE = 0.72, 0.2, 0.1
_TITLE, _BOTTOM, _LEGEND_BELOW, _LEGEND, _LINE = 0.34, 0.46, 0.77, 0.67, 0.2
_LETTERS, _BOLD_LETTERS = 17.0, 12.5  # of a caption and of a label, to an inch
_STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine draws the same
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "gelu_paper",  # otherwise the names in an SVG file are random
}
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
FORMATS = tuple(_METADATA)


@contextmanager
def style() -> Iterator[None]:
    """Draw with the figures' fonts, frames and grid, whatever the user's own defaults are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def light(dark: str) -> str:
    """Return the light form of a colour, both as ``#rrggbb``."""
    parts = (int(dark[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(255 - _LIGHT * (255 - part)):02x}" for part in parts)


def panels(
    number: int, title: str, labels: Sequence[str] = (), width: int = 1, legend_below: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with panels side by side; below the title, in red, what must be said of its numbers."""
    size = _TWO_PANELS if width > 1 else _ONE_PANEL
    lines = [line for label in labels for line in textwrap.wrap(label, int(_BOLD_LETTERS * (size[0] - 2 * _EDGE)))]
    top = _TITLE + _LINE * (len(lines) + (width > 1))
    bottom = _BOTTOM + (_LEGEND_BELOW if legend_below else 0)
    height = size[1] + top + bottom
    figure = Figure(figsize=(size[0], height))
    figure.text(_EDGE / size[0], 1 - 0.08 / height, f"Figure {number}. {title}", va="top", fontsize=11, weight="bold")
    for place, line in enumerate(lines):
        y = 1 - (0.3 + _LINE * place) / height
        figure.text(_EDGE / size[0], y, line, va="top", fontsize=9, weight="bold", color="#B00000")
    axes = figure.subplots(1, width, squeeze=False)[0]
    figure.subplots_adjust(
        left=_LEFT / size[0], right=1 - _RIGHT / size[0], bottom=bottom / height, top=1 - top / height, wspace=0.24
    )
    return figure, list(axes)


def legend(figure: Figure, arms: Iterable[str], extra: Sequence[Line2D] = ()) -> None:
    """Name the arms, and in a second row what else is drawn, below the panels, where no curve can be."""
    first = [Line2D([], [], color=COLOURS[arm], linewidth=DARK_WIDTH + 0.4, label=NAMES[arm]) for arm in arms]
    for row, handles in enumerate((first, extra)):
        if handles:
            figure.legend(
                handles=list(handles),
                loc="center",
                bbox_to_anchor=(0.5, (_LEGEND - _LINE * row) / figure.get_figheight()),
                ncols=len(handles),
                fontsize=8.5,
                handlelength=1.8,
                borderpad=0,
            )


def caption(figure: Figure, text: str) -> None:
    """Write a caption below the legend, in lines as long as the figure is wide."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(text, int(_LETTERS * (width - 2 * _EDGE)))
    figure.text(_EDGE / width, 0.06 / height, "\n".join(lines), va="bottom", fontsize=7.5, color="#555555")


def write(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's ending; the same figure gives the same bytes."""
    form, buffer = path.suffix[1:], io.BytesIO()
    with style():
        figure.savefig(buffer, format=form, dpi=200, metadata=_METADATA[form])
    with write_atomically(path) as temporary:
        temporary.write_bytes(buffer.getvalue())
