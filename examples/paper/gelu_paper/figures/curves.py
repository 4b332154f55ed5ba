"""Figures 2, 4, 5, 6 and 7: a dark and a light curve for each activation, medians over the seeds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gelu_paper.figures import drawing
from gelu_paper.figures.drawing import Drawing, FigureOptions
from gelu_paper.protocol.experiments import Experiment
from gelu_paper.protocol.published import published_curve
from gelu_paper.records.run_record import RunRecord
from gelu_paper.results.labels import labels_of
from gelu_paper.results.medians import MedianCurve, median_curve
from gelu_paper.results.selection import ArmRuns, choices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """One panel of a figure."""

    title: str = ""
    setting: Mapping[str, float] = field(default_factory=dict)  # of the runs that it shows
    learning_rate: float | None = None  # None: the one that is reported for each arm


@dataclass(frozen=True)
class CurveFigure:
    """One of the paper's figures of curves over epochs."""

    number: int
    experiment: str
    title: str
    light: str  # the curve in light, such as "test_loss"
    legends: tuple[str, str]  # what the dark and the light one are
    dark: str = "train_loss"
    unit: str = "log loss (nats)"  # what the vertical axis shows
    panels: tuple[Panel, ...] = (Panel(),)
    note: str = ""  # what the caption ends with

    @property
    def scale(self) -> float:
        """What values are multiplied by: 100 for errors, which are drawn in per cent."""
        return 100.0 if self.dark.endswith("error") else 1.0


CURVE_FIGURES = (
    CurveFigure(
        number=2,
        experiment="mnist",
        title="MNIST classification",
        light="val_loss",
        legends=("training, dropout off", "validation"),
        panels=(Panel("no dropout", {"keep": 1.0}), Panel("dropout, keep 0.5", {"keep": 0.5})),
    ),
    CurveFigure(
        number=4,
        experiment="autoencoder",
        title="MNIST autoencoder",
        unit="reconstruction error (mean squared)",
        light="test_loss",
        legends=("training", "test"),
        panels=(Panel("learning rate 0.001", learning_rate=1e-3), Panel("learning rate 0.0001", learning_rate=1e-4)),
    ),
    CurveFigure(
        number=5,
        experiment="timit",
        title="TIMIT frame classification",
        light="val_loss",
        legends=("training, dropout off", "validation"),
    ),
    CurveFigure(
        number=6,
        experiment="cifar10",
        title="CIFAR-10",
        unit="error (%)",
        dark="train_error",
        light="test_error",
        legends=("training, noise and dropout on", "test"),
    ),
    CurveFigure(
        number=7,
        experiment="cifar100",
        title="CIFAR-100, wide residual net",
        light="test_loss",
        legends=("training, dropout on", "test, dropout off"),
        note="Training loss with the penalty on the weights.",
    ),
)


_MARK: dict[str, Any] = {"marker": "o", "markersize": 5, "markerfacecolor": "white", "linestyle": ""}
_PUBLISHED = " published"  # how the labels of marks end
_LINE_STYLES = ("-", "--", ":", "-.")
_FAR_FROM_ZERO = 0.4  # of the highest value
_STEEP_PART = 0.15  # of the epochs: higher values before them are cut off, as the paper's axes do


@dataclass(frozen=True)
class _Line:
    """An arm's two curves in a panel."""

    arm: str
    candidate: ArmRuns
    is_chosen: bool  # among several
    dark: MedianCurve | None
    light: MedianCurve | None
    dashes: str


def draw_curves(
    figure: CurveFigure, experiment: Experiment, records: Sequence[RunRecord], options: FigureOptions
) -> Drawing:
    """Draw one of the figures from an experiment's records; without a figure if no run of it is there."""
    lines = [list(_lines(figure, panel, experiment, records, options)) for panel in figure.panels]
    missing = tuple(
        f"{panel.title + ': ' if panel.title else ''}{drawing.name_of(arm)}"
        for panel, drawn in zip(figure.panels, lines, strict=True)
        for arm in options.arms
        if arm not in {line.arm for line in drawn if line.dark is not None and line.light is not None}
    )
    shown = [run for drawn in lines for line in drawn for run in line.candidate.runs]
    if not any(curve is not None for drawn in lines for line in drawn for curve in (line.dark, line.light)):
        return Drawing(figure.number, None, missing)
    with drawing.style():
        canvas, axes = drawing.panels(figure.number, figure.title, labels_of(shown), len(figure.panels))
        for panel, drawn, each in zip(figure.panels, lines, axes, strict=True):
            _draw_panel(each, figure, panel, drawn, options)
        _legend(canvas, figure, lines)
        drawing.caption(canvas, _caption(figure, lines))
    return Drawing(figure.number, canvas, missing)


def _lines(
    figure: CurveFigure, panel: Panel, experiment: Experiment, records: Sequence[RunRecord], options: FigureOptions
) -> Iterator[_Line]:
    """Yield what a panel shows; an arm with several learning rates and no choice among them has a line for each."""
    for arm in options.arms:
        matching = [choice for choice in choices(experiment, arm, records) if _belongs(choice.chosen, panel)]
        for choice, dashes in zip(matching, _LINE_STYLES, strict=False):
            dark, bright = (median_curve(choice.chosen.runs, name) for name in (figure.dark, figure.light))
            is_chosen = len(choice.candidates) > 1
            yield _Line(arm, choice.chosen, is_chosen=is_chosen, dark=dark, light=bright, dashes=dashes)


def _belongs(candidate: ArmRuns, panel: Panel) -> bool:
    same_rate = panel.learning_rate in {None, candidate.learning_rate}
    return same_rate and all(candidate.setting.get(name) == value for name, value in panel.setting.items())


def _draw_panel(
    axes: "Axes", figure: CurveFigure, panel: Panel, lines: Sequence[_Line], options: FigureOptions
) -> None:
    """Draw the curves, light ones below dark ones."""
    for line in lines:
        shade = drawing.colour(line.arm)
        for curve, name, color, width, order in (
            (line.light, figure.light, drawing.light(shade), drawing.LIGHT_WIDTH, 2),
            (line.dark, figure.dark, shade, drawing.DARK_WIDTH, 3),
        ):
            if curve is not None:
                look = {"color": color, "linewidth": width, "linestyle": line.dashes, "zorder": order}
                drawing.draw_median(
                    axes, curve, lambda value: figure.scale * value, options, label=f"{line.arm} {name}", **look
                )
    _set_limits(axes, figure, lines)
    if options.published:
        _draw_published(axes, figure, lines)
    axes.set_xlabel("epoch")
    axes.set_ylabel(figure.unit)
    axes.set_title(panel.title)
    if not lines:
        axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, ha="center", color="#777777")


def _set_limits(axes: "Axes", figure: CurveFigure, lines: Sequence[_Line]) -> None:
    """Cut off the steep beginning, and what is far from zero starts near its lowest value: differences are seen."""
    points = [
        (epoch, value * figure.scale)
        for line in lines
        for curve in (line.dark, line.light)
        if curve is not None
        for epoch, value in zip(curve.epoch, curve.median, strict=True)
        if math.isfinite(value)
    ]
    if not points:
        return
    end = max(epoch for epoch, _ in points)
    late = [value for epoch, value in points if epoch >= _STEEP_PART * end]
    axes.set_xlim(0, end)
    low, high = min(value for _, value in points), max(late)
    margin = 0.06 * (high - low) or 0.06 * high or 1.0
    axes.set_ylim(low - margin if low > _FAR_FROM_ZERO * high else 0, high + margin)


def _draw_published(axes: "Axes", figure: CurveFigure, lines: Sequence[_Line]) -> None:
    """Mark the points that were read from the paper's figure, as far as the axes reach."""
    for line in lines:
        candidate = line.candidate
        for name, shade in (
            (figure.dark, drawing.colour(line.arm)),
            (figure.light, drawing.light(drawing.colour(line.arm))),
        ):
            known = published_curve(figure.experiment, line.arm, name, candidate.setting, candidate.learning_rate)
            if known is None:
                continue
            low, high = axes.get_ylim()
            scaled = [(epoch, figure.scale * value) for epoch, value in known.points]
            inside = [(epoch, y) for epoch, y in scaled if epoch <= axes.get_xlim()[1] and low <= y <= high]
            if inside:
                epochs, values = zip(*inside, strict=True)
                axes.plot(
                    epochs,
                    values,
                    color=shade,
                    zorder=4,
                    clip_on=False,
                    label=f"{line.arm} {name}{_PUBLISHED}",
                    **_MARK,
                )


def _legend(canvas: "Figure", figure: CurveFigure, lines: Sequence[Sequence[_Line]]) -> None:
    """Name the activations, what is dark and what is light."""
    from matplotlib.lines import Line2D

    arms = list(dict.fromkeys(line.arm for drawn in lines for line in drawn))
    dark, bright = figure.legends
    extra = [
        Line2D([], [], color="#333333", linewidth=drawing.DARK_WIDTH, label=dark),
        Line2D([], [], color=drawing.light("#333333"), linewidth=drawing.LIGHT_WIDTH, label=bright),
    ]
    if any(str(line.get_label()).endswith(_PUBLISHED) for axes in canvas.axes for line in axes.lines):
        extra.append(Line2D([], [], color="#333333", label="read from the paper's figure", **_MARK))
    drawing.legend(canvas, arms, extra)


def _caption(figure: CurveFigure, lines: Sequence[Sequence[_Line]]) -> str:
    """Say how many runs the medians are of, and at which learning rates."""
    text = drawing.runs_in_words(len(line.candidate.runs) for drawn in lines for line in drawn)
    if all(panel.learning_rate is None for panel in figure.panels):
        rates = [
            (panel.title, [(line.arm, line.candidate.learning_rate) for line in drawn])
            for panel, drawn in zip(figure.panels, lines, strict=True)
        ]
        chosen = all(line.is_chosen for drawn in lines for line in drawn)
        text += f" {drawing.rates_in_words(rates, chosen)}"
    diverged = sum(line.candidate.diverged for drawn in lines for line in drawn)
    parts = [text, f"{diverged} runs diverged and count as infinite." if diverged else "", figure.note]
    return " ".join(part for part in parts if part)
