"""What all figures share: what is asked for, what came of it, colours, frames, captions, and how they are written."""

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lit_gelu.extras import need
from lit_gelu.files import write_atomically
from gelu_paper.results.medians import MedianCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Format = Literal["png", "svg", "pdf"]

# Okabe and Ito's palette; Tol's wine red in the place of its purple, which looks like the blue to who sees no red.
_COLOURS = {
    "gelu": "#0072B2",
    "relu": "#D55E00",
    "elu": "#009E73",
    "silu": "#882255",
    "zero_identity": "#E69F00",
    "gelu_tanh": "#56B4E9",
    "gelu_sigmoid": "#000000",
}
_OTHER_COLOUR = "#777777"
_NAMES = {
    "gelu": "GELU",
    "relu": "ReLU",
    "elu": "ELU",
    "silu": "SiLU",
    "zero_identity": "0-I map",
    "gelu_tanh": "GELU, tanh",
    "gelu_sigmoid": "GELU, sigmoid",
}
_LIGHT = 0.45  # how much of its colour a light curve keeps; the rest is white
DARK_WIDTH, LIGHT_WIDTH = 1.6, 1.2
# The layout, in inches: a legend below the panels is nothing that matplotlib's own layouts leave room for.
_ONE_PANEL, _TWO_PANELS = (6.2, 3.1), (9.2, 2.7)  # a figure's width, a panel's height
_LEFT, _RIGHT, _EDGE = 0.72, 0.2, 0.1
_TITLE, _BOTTOM, _LEGEND_BELOW, _LEGEND, _LINE = 0.34, 0.46, 0.77, 0.67, 0.2
_LETTERS, _BOLD_LETTERS = 17.0, 12.5  # of a caption and of a label, to an inch
LABEL_COLOUR = "#B00000"
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
    "svg.hashsalt": "lit-gelu",  # otherwise the names in an SVG file are random
}
_METADATA: dict[Format, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def style() -> Iterator[None]:
    """Draw with the figures' fonts, frames and grid, whatever the user's own defaults are."""
    need("matplotlib", extra="plots", what="A figure of the paper")
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def colour(arm: str) -> str:
    """Return an arm's colour as ``#rrggbb``, the same in all figures; grey for an arm that has none."""
    return _COLOURS.get(arm, _OTHER_COLOUR)


def light(dark: str) -> str:
    """Return the light form of a colour, both as ``#rrggbb``."""
    parts = (int(dark[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(255 - _LIGHT * (255 - part)):02x}" for part in parts)


def name_of(arm: str) -> str:
    """Return how an arm is written in a legend."""
    return _NAMES.get(arm, arm)


def panels(
    number: int, title: str, labels: Sequence[str], width: int = 1, legend_below: bool = True
) -> tuple["Figure", list["Axes"]]:
    """Return an empty figure with panels side by side; below the title, in red, what must be said of its numbers."""
    from matplotlib.figure import Figure

    size = _TWO_PANELS if width > 1 else _ONE_PANEL
    lines = [line for label in labels for line in textwrap.wrap(label, int(_BOLD_LETTERS * (size[0] - 2 * _EDGE)))]
    top = _TITLE + _LINE * (len(lines) + (width > 1))
    bottom = _BOTTOM + (_LEGEND_BELOW if legend_below else 0)
    height = size[1] + top + bottom
    figure = Figure(figsize=(size[0], height))
    figure.text(_EDGE / size[0], 1 - 0.08 / height, f"Figure {number}. {title}", va="top", fontsize=11, weight="bold")
    for place, line in enumerate(lines):
        y = 1 - (0.3 + _LINE * place) / height
        figure.text(_EDGE / size[0], y, line, va="top", fontsize=9, weight="bold", color=LABEL_COLOUR)
    axes = figure.subplots(1, width, squeeze=False)[0]
    figure.subplots_adjust(
        left=_LEFT / size[0], right=1 - _RIGHT / size[0], bottom=bottom / height, top=1 - top / height, wspace=0.24
    )
    return figure, list(axes)


def legend(figure: "Figure", arms: Sequence[str], extra: Sequence["Line2D"] = ()) -> None:
    """Name the arms, and in a second row what else is drawn, below the panels, where no curve can be."""
    from matplotlib.lines import Line2D

    first = [Line2D([], [], color=colour(arm), linewidth=DARK_WIDTH + 0.4, label=name_of(arm)) for arm in arms]
    height = figure.get_figheight()
    for row, handles in enumerate((first, extra)):
        if handles:
            figure.legend(
                handles=handles,
                loc="center",
                bbox_to_anchor=(0.5, (_LEGEND - _LINE * row) / height),
                ncols=len(handles),
                fontsize=8.5,
                handlelength=1.8,
                borderpad=0,
            )


def caption(figure: "Figure", text: str) -> None:
    """Write a caption below the legend, in lines as long as the figure is wide."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(text, int(_LETTERS * (width - 2 * _EDGE)))
    figure.text(_EDGE / width, 0.06 / height, "\n".join(lines), va="bottom", fontsize=7.5, color="#555555")


def write(figure: "Figure", path: Path, form: Format) -> None:
    """Write a figure, whole or not at all; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=form, dpi=200, metadata=_METADATA[form])
    with write_atomically(path) as temporary:
        temporary.write_bytes(buffer.getvalue())


PAPER_ARMS = ("gelu", "relu", "elu")


@dataclass(frozen=True)
class FigureOptions:
    """What the figures show."""

    arms: tuple[str, ...] = PAPER_ARMS
    published: bool = False  # whether to mark the points that were read from the paper's own figures
    band: bool = False  # whether to shade the range from the lowest to the highest run


@dataclass(frozen=True)
class Drawing:
    """One of the paper's figures, as far as it could be drawn."""

    number: int
    figure: "Figure | None"  # None if there is no run of it
    missing: tuple[str, ...] = ()  # which curves are not in it for want of runs


def draw_median(
    axes: "Axes", curve: MedianCurve, mapped: Callable[[float], float], options: FigureOptions, **look: Any
) -> None:
    """Draw a median, no line where it is infinite, and around it the range of the runs if that is asked for."""
    middle, low, high = (
        [mapped(value) if math.isfinite(value) else math.nan for value in values]
        for values in (curve.median, curve.low, curve.high)
    )
    axes.plot(curve.epoch, middle, **look)
    if options.band:
        axes.fill_between(curve.epoch, low, high, color=look["color"], alpha=0.18, linewidth=0, zorder=1)


def runs_in_words(counts: Iterable[int]) -> str:
    """Say how many runs each of a figure's medians is of."""
    numbers = sorted(set(counts))
    if numbers == [1]:
        return "Single runs."
    return f"Medians of {numbers[0]}{f' to {numbers[-1]}' if len(numbers) > 1 else ''} runs."


def rates_in_words(panels: Sequence[tuple[str, Sequence[tuple[str, float]]]], chosen: bool) -> str:
    """Say for each panel's title and lines at which learning rates the runs were made, and if validation chose them."""
    values = {rate for _, lines in panels for _, rate in lines}
    how = ", chosen on the validation set" if chosen else ""
    if len(values) == 1:
        return f"Learning rate {values.pop():g}{how}."
    texts = [
        f"{title + ': ' if title else ''}{', '.join(f'{name_of(arm)} {rate:g}' for arm, rate in lines)}"
        for title, lines in panels
        if lines
    ]
    return f"Learning rate{how}: {'; '.join(texts)}."
