"""The paper's figures 1 to 7, from records: medians over the seeds, a dark and a light curve for each activation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gelu_paper import drawing
from gelu_paper.experiments import EXPERIMENTS, preset
from gelu_paper.labels import labels_of
from gelu_paper.published import agrees, published_curve
from gelu_paper.records import RunRecord
from gelu_paper.results import Choice, choices, median_curve
from lit_gelu.activations.functional import derivative
from lit_gelu.errors import ArgumentError

ARMS = ("gelu", "relu", "elu")
_MARK: dict[str, Any] = {"marker": "o", "markersize": 5, "markerfacecolor": "white", "linestyle": ""}
_LINE_STYLES = ("-", "--", ":", "-.")
_FAR_FROM_ZERO = 0.4  # of the highest value
_STEEP_PART = 0.15  # of the epochs: higher values before them are cut off, as the paper's axes do


@dataclass(frozen=True)
class Panel:
    """One panel of a figure of curves."""

    title: str = ""
    setting: Mapping[str, float] = field(default_factory=dict)  # of the runs that it shows
    learning_rate: float | None = None  # None: the one that is reported for each arm


@dataclass(frozen=True, kw_only=True)
class CurveFigure:
    """One of the paper's figures of curves over epochs."""

    experiment: str
    title: str
    dark: str = "train_loss"
    light: str
    legends: tuple[str, str]  # what the dark and the light curve are
    unit: str = "log loss (nats)"
    panels: tuple[Panel, ...] = (Panel(),)
    note: str = ""  # what the caption ends with

    @property
    def scale(self) -> float:
        """What values are multiplied by: 100 for errors, which are drawn in per cent."""
        return 100.0 if self.dark.endswith("error") else 1.0


CURVES = {
    2: CurveFigure(
        experiment="mnist",
        title="MNIST classification",
        light="val_loss",
        legends=("training, dropout off", "validation"),
        panels=(Panel("no dropout", {"keep": 1.0}), Panel("dropout, keep 0.5", {"keep": 0.5})),
    ),
    4: CurveFigure(
        experiment="autoencoder",
        title="MNIST autoencoder",
        unit="reconstruction error (mean squared)",
        light="test_loss",
        legends=("training", "test"),
        panels=(Panel("learning rate 0.001", learning_rate=1e-3), Panel("learning rate 0.0001", learning_rate=1e-4)),
    ),
    5: CurveFigure(
        experiment="timit",
        title="TIMIT frame classification",
        light="val_loss",
        legends=("training, dropout off", "validation"),
    ),
    6: CurveFigure(
        experiment="cifar10",
        title="CIFAR-10",
        unit="error (%)",
        dark="train_error",
        light="test_error",
        legends=("training, noise and dropout on", "test"),
    ),
    7: CurveFigure(
        experiment="cifar100",
        title="CIFAR-100, wide residual net",
        light="test_loss",
        legends=("training, dropout on", "test, dropout off"),
        note="Training loss with the penalty on the weights.",
    ),
}
FIGURES = {1: "functions", 3: "mnist under noise"} | {number: figure.experiment for number, figure in CURVES.items()}


def draw(number: int, records: Sequence[RunRecord], *, published: bool = False) -> Figure | None:
    """Draw one of the paper's figures.

    Args:
        number: Which, 1 to 7; figure 1 needs no runs.
        records: The runs, of one preset.
        published: Whether to mark the points that were read from the paper's own figures.

    Returns:
        The figure; ``None`` if there is no run of it.

    Raises:
        ArgumentError: If there is no such figure, or the runs are of two presets.
        DataError: If the runs do not fit together.
    """
    if number not in FIGURES:
        raise ArgumentError(f"No figure {number}. Accepted: {', '.join(map(str, FIGURES))}.")
    with drawing.style():
        if number == 1:
            return _functions()
        name = CURVES[number].experiment if number in CURVES else "mnist"
        runs = [record for record in records if record.experiment == name and record.arm in ARMS]
        presets = {record.preset for record in runs}
        if len(presets) > 1:
            raise ArgumentError(f"Runs of the presets {', '.join(sorted(presets))} given; a figure shows one.")
        experiment = (EXPERIMENTS | preset(presets.pop()))[name] if presets else EXPERIMENTS[name]
        chosen = sorted(choices(experiment, runs), key=lambda choice: ARMS.index(choice.arm))
        if number == 3:
            return _robustness([choice for choice in chosen if agrees(experiment.robust_settings, choice.setting)])
        return _curves(number, chosen, published)


def _functions() -> Figure:
    """Draw the GELU with mean 0 and deviation 1, the ReLU and the ELU with alpha 1."""
    x = torch.linspace(-4, 3, 1401, dtype=torch.float64)
    figure, (axes,) = drawing.panels(1, "The GELU, the ReLU and the ELU", legend_below=False)
    axes.axhline(0, color="#BBBBBB", linewidth=0.8, zorder=1)
    axes.axvline(0, color="#BBBBBB", linewidth=0.8, zorder=1)
    # Right of zero ReLU and ELU are one line, so one of them is dashed.
    for spec, name, dashes in (
        ("gelu", "GELU ($\\mu = 0$, $\\sigma = 1$)", "-"),
        ("elu", "ELU ($\\alpha = 1$)", "-"),
        ("relu", "ReLU", (0, (5, 3))),
    ):
        y, colour = derivative(spec, x, 0).numpy(), drawing.COLOURS[spec]
        axes.plot(x.numpy(), y, color=colour, linewidth=drawing.DARK_WIDTH, linestyle=dashes, label=name)
    axes.set(xlim=(-4, 3), ylim=(-1.2, 3.0), xlabel="x", ylabel="f(x)")
    axes.legend(loc="upper left")
    return figure


def _robustness(chosen: Sequence[Choice]) -> Figure | None:
    """Draw accuracy and log loss of the MNIST nets that were trained without dropout, under noise on their inputs."""
    # The paper printed no number of this figure, so there are no published points to mark.
    curves = {
        choice.arm: (error, loss)
        for choice in chosen
        if (error := median_curve(choice.runs, "noise error")) is not None
        and (loss := median_curve(choice.runs, "noise loss")) is not None
    }
    if not curves:
        return None
    labels = labels_of(run for choice in chosen for run in choice.runs)
    figure, axes = drawing.panels(3, "MNIST classification under uniform noise", labels, 2)
    for arm, (error, loss) in curves.items():
        look: dict[str, Any] = {
            "marker": ".",
            "markersize": 5,
            "color": drawing.COLOURS[arm],
            "linewidth": drawing.DARK_WIDTH,
        }
        for each, median in zip(axes, (100 * (1 - error["median"]), loss["median"]), strict=True):
            each.plot(median.index, _visible(median), label=arm, clip_on=False, **look)
    for each, unit in zip(axes, ("test accuracy (%)", "test log loss (nats)"), strict=True):
        each.set(xlabel="noise strength a, uniform in [-a, a]", ylabel=unit)
        each.set_xlim(0, max(error.index[-1] for error, _ in curves.values()))
        each.set_ylim(bottom=0)
    axes[0].set_ylim(top=100)
    drawing.legend(figure, curves)
    rates = _rates([("", chosen)], all(choice.is_tuned for choice in chosen))
    drawing.caption(figure, f"{_runs(chosen)} Nets without dropout, last epoch. {rates}")
    return figure


@dataclass(frozen=True)
class _Line:
    """An arm's two curves in a panel."""

    choice: Choice
    curves: dict[str, pd.DataFrame]  # by name, those that the runs have
    dashes: str


def _curves(number: int, chosen: Sequence[Choice], published: bool) -> Figure | None:
    """Draw a figure of curves; an arm with several learning rates and no choice among them has a line for each."""
    figure = CURVES[number]
    lines_of = []
    for panel in figure.panels:
        shown = [
            choice
            for choice in chosen
            if panel.learning_rate in {None, choice.learning_rate} and agrees(panel.setting, choice.setting)
        ]
        lines_of.append([_line(figure, one, [other for other in shown if other.arm == one.arm]) for one in shown])
    shown = [line.choice for lines in lines_of for line in lines if line.curves]
    if not shown:
        return None
    labels = labels_of(run for choice in shown for run in choice.runs)
    canvas, axes = drawing.panels(number, figure.title, labels, len(figure.panels))
    has_marks = False
    for panel, lines, each in zip(figure.panels, lines_of, axes, strict=True):
        _draw_panel(each, figure, panel, lines)
        if published:
            for line in lines:
                has_marks |= _mark_published(each, figure, line.choice)
    grey = "#333333"
    extra = [
        Line2D([], [], color=grey, linewidth=drawing.DARK_WIDTH, label=figure.legends[0]),
        Line2D([], [], color=drawing.light(grey), linewidth=drawing.LIGHT_WIDTH, label=figure.legends[1]),
    ]
    extra += [Line2D([], [], color=grey, label="read from the paper's figure", **_MARK)] if has_marks else []
    drawing.legend(canvas, dict.fromkeys(choice.arm for choice in shown), extra)
    text = [_runs(shown)]
    if all(panel.learning_rate is None for panel in figure.panels):
        pairs = zip(figure.panels, lines_of, strict=True)
        titled = [(panel.title, [line.choice for line in lines]) for panel, lines in pairs]
        text.append(_rates(titled, all(choice.is_tuned for choice in shown)))
    diverged = sum(choice.diverged for choice in shown)
    text += [f"{diverged} runs diverged and count as infinite."] if diverged else []
    drawing.caption(canvas, " ".join([*text, figure.note]).rstrip())
    return canvas


def _draw_panel(axes: Axes, figure: CurveFigure, panel: Panel, lines: Sequence[_Line]) -> None:
    """Draw a panel's curves, light ones below dark ones."""
    for line in lines:
        for name, colour, width, order in _looks(figure, line.choice.arm):
            if name in line.curves:
                median = figure.scale * line.curves[name]["median"]
                look: dict[str, Any] = {"linestyle": line.dashes, "color": colour, "linewidth": width}
                axes.plot(median.index, _visible(median), label=f"{line.choice.arm} {name}", zorder=order, **look)
    _set_limits(axes, [figure.scale * curve["median"] for line in lines for curve in line.curves.values()])
    axes.set(xlabel="epoch", ylabel=figure.unit, title=panel.title)
    if not lines:
        axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, ha="center", color="#777777")


def _line(figure: CurveFigure, choice: Choice, of_arm: Sequence[Choice]) -> _Line:
    curves = {name: median_curve(choice.runs, name) for name in (figure.dark, figure.light)}
    there = {name: curve for name, curve in curves.items() if curve is not None}
    return _Line(choice, there, _LINE_STYLES[of_arm.index(choice) % len(_LINE_STYLES)])


def _looks(figure: CurveFigure, arm: str) -> list[tuple[str, str, float, int]]:
    """Return name, colour, width and order of an arm's curves: light ones lie below dark ones."""
    colour = drawing.COLOURS[arm]
    return [
        (figure.light, drawing.light(colour), drawing.LIGHT_WIDTH, 2),
        (figure.dark, colour, drawing.DARK_WIDTH, 3),
    ]


def _visible(values: pd.Series) -> list[float]:
    """Return values with gaps where they are infinite."""
    return [value if math.isfinite(value) else math.nan for value in values]


def _set_limits(axes: Axes, curves: Sequence[pd.Series]) -> None:
    """Cut off the steep beginning, and what is far from zero starts near its lowest value: differences are seen."""
    points = [(x, y) for curve in curves for x, y in zip(curve.index, curve, strict=True) if math.isfinite(y)]
    if not points:
        return
    end = max(epoch for epoch, _ in points)
    low, high = min(value for _, value in points), max(value for epoch, value in points if epoch >= _STEEP_PART * end)
    margin = 0.06 * (high - low) or 0.06 * high or 1.0
    axes.set_xlim(0, end)
    axes.set_ylim(low - margin if low > _FAR_FROM_ZERO * high else 0, high + margin)


def _mark_published(axes: Axes, figure: CurveFigure, choice: Choice) -> bool:
    """Mark the points that were read from the paper's figure, as far as the axes reach; tell whether there are any."""
    (low, high), end, is_any = axes.get_ylim(), axes.get_xlim()[1], False
    for name, colour, _, _ in reversed(_looks(figure, choice.arm)):
        curve = published_curve(figure.experiment, choice.arm, name, choice.setting, choice.learning_rate)
        points = [(epoch, figure.scale * value) for epoch, value in (curve.points if curve is not None else ())]
        inside = [(epoch, value) for epoch, value in points if epoch <= end and low <= value <= high]
        if inside:
            epochs, values = zip(*inside, strict=True)
            axes.plot(epochs, values, color=colour, zorder=4, clip_on=False, **_MARK)
            is_any = True
    return is_any


def _runs(chosen: Sequence[Choice]) -> str:
    """Say how many runs each of a figure's medians is of."""
    numbers = sorted({len(choice.runs) for choice in chosen})
    if numbers == [1]:
        return "Single runs."
    return f"Medians of {numbers[0]}{f' to {numbers[-1]}' if len(numbers) > 1 else ''} runs."


def _rates(titled: Sequence[tuple[str, Sequence[Choice]]], are_tuned: bool) -> str:
    """Say at which learning rates the runs of each panel were made, and if validation chose them."""
    values = {choice.learning_rate for _, chosen in titled for choice in chosen}
    how = ", chosen on the validation set" if are_tuned else ""
    if len(values) == 1:
        return f"Learning rate {values.pop():g}{how}."
    texts = [
        f"{title + ': ' if title else ''}"
        + ", ".join(f"{drawing.NAMES[choice.arm]} {choice.learning_rate:g}" for choice in chosen)
        for title, chosen in titled
        if chosen
    ]
    return f"Learning rate{how}: {'; '.join(texts)}."
