"""The pictures of a comparison: curves with the spread over the seeds, and differences with their intervals."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_gelu.choose.intervals import PairedDifference
from lit_gelu.choose.outcome import ActivationChoice, CandidateReport
from lit_gelu.files import write_atomically

# Okabe and Ito's palette, with a wine red in the place of its purple, as the paper's figures have it.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#882255", "#E69F00", "#56B4E9", "#000000", "#777777")


def draw_curves(choice: ActivationChoice) -> Figure:
    """Draw the metric over the epochs: medians as lines, and from the lowest to the highest run as a band."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for number, candidate in enumerate(choice.candidates):
        _draw_curve(axes, candidate, choice.metric.name, _COLOURS[number % len(_COLOURS)])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel(choice.metric.name)
    axes.set_title(f"medians and range of {len(choice.seeds)} seeds", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    _plain(axes)
    return figure


def _draw_curve(axes: Axes, candidate: CandidateReport, name: str, colour: str) -> None:
    whole = [run for run in candidate.runs if not run.failure and run.curves.get(name)]
    if not whole:
        return
    length = min(len(run.curves[name]) for run in whole)
    # NaN is not drawn: a median of runs that diverged has no place on the axis.
    columns = [[run.curves[name][place] for run in whole] for place in range(length)]
    finite = [all(map(math.isfinite, column)) for column in columns]
    middle, low, high = (
        [f(column) if is_finite else math.nan for column, is_finite in zip(columns, finite, strict=True)]
        for f in (statistics.median, min, max)
    )
    epochs = whole[0].epochs[:length]
    marker = "o" if length == 1 else None
    axes.plot(epochs, middle, color=colour, linewidth=1.6, marker=marker, label=candidate.label)
    axes.fill_between(epochs, low, high, color=colour, alpha=0.18, linewidth=0)


def draw_differences(choice: ActivationChoice) -> Figure:
    """Draw how far each candidate is from the best one, and from the baseline, with 95 % intervals."""
    references = list(dict.fromkeys(filter(None, [choice.best.label, choice.baseline])))
    figure = Figure(figsize=(6.4, 1.2 + 0.42 * len(choice.candidates) * len(references)), layout="constrained")
    for axes, label in zip(figure.subplots(len(references), 1, squeeze=False)[:, 0], references, strict=True):
        found = [choice.difference(candidate.label, label) for candidate in choice.candidates]
        _draw_intervals(axes, [difference for difference in found if difference is not None])
        axes.set_xlabel(f"{choice.metric.name} beside that of {label}, mean over {len(choice.seeds)} seeds, 95 %")
    return figure


def _draw_intervals(axes: Axes, found: Sequence[PairedDifference]) -> None:
    axes.axvline(0, color="0.5", linewidth=1)
    for place, difference in enumerate(found):
        colour = _COLOURS[1] if difference.is_decided else "0.45"
        if difference.low is not None and difference.high is not None:
            axes.plot([difference.low, difference.high], [place, place], color=colour, linewidth=2)
        axes.plot([difference.mean], [place], "o", color=colour)
    axes.set_yticks(range(len(found)), [difference.of for difference in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)


def write_pictures(choice: ActivationChoice, folder: Path) -> dict[str, str]:
    """Write both as PNG files; return their names. Of a metric that is measured once there are no curves."""
    drawn = {"differences": draw_differences(choice)}
    if choice.metric.stage == "val":
        drawn["curves"] = draw_curves(choice)
    for name, figure in drawn.items():
        with write_atomically(folder / f"{name}.png") as temporary:
            figure.savefig(temporary, dpi=130, metadata={"Software": None})
    return {name: f"{name}.png" for name in drawn}
