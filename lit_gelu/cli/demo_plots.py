"""The demo's plots, drawn from the CSV log of its training."""

import csv
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from lit_gelu.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = tuple[list[int], list[float]]

PANELS = {
    ("standard_deviation",): "standard deviation of the pre-activation",
    # ReLU bends at 0 alone: there the mean of |f''| is 0, and all of its curvature is the kink's.
    ("mean_abs_second_derivative", "kink_mass"): "curvature: mean of |f''|, kinks included",
    ("share_decreasing",): "share of inputs where f' < 0",
    ("mean_squared_derivative",): "mean of f'^2, the gain of squared gradients",
}


def read_log(path: Path) -> dict[str, Series]:
    r"""Read Lightning's CSV log."""
    series: dict[str, Series] = defaultdict(lambda: ([], []))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name not in {"step", "epoch"}:
                    series[name][0].append(int(row["step"]))
                    series[name][1].append(float(value))
    return dict(series)


def plot_training(log: Path, path: Path, swap_step: int) -> None:
    """Draw losses and validation error over the steps, with the swap marked."""
    from matplotlib.figure import Figure

    series = read_log(log)
    figure = Figure(figsize=(11, 4), layout="constrained")
    losses, errors = figure.subplots(1, 2)
    losses.plot(*series["train_loss"], label="training", linewidth=1, alpha=0.8)
    losses.plot(*series["val_loss"], label="validation", linewidth=2)
    losses.set_yscale("log")
    losses.set_title("cross-entropy", pad=18)
    losses.legend(frameon=False)
    steps, values = series["val_error"]
    errors.plot(steps, [100 * value for value in values], linewidth=2, color="C1")
    errors.set_title("validation error, %", pad=18)
    errors.set_ylim(bottom=0)
    for axes in (losses, errors):
        mark_swap(axes, swap_step)
    _save(figure, path)


def plot_curvature(log: Path, path: Path, swap_step: int) -> None:
    """Draw what the monitor logged: one panel a statistic, one line a site, from light for the first to dark."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    series = read_log(log)
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    sites = sorted({name.split("/")[1] for name in series if name.startswith("curvature/hidden.")})
    colors = colormaps["viridis"]
    for axes, (statistics, title) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        for number, site in enumerate(sites):
            color = colors(0.9 - 0.9 * number / max(1, len(sites) - 1))  # its yellow end is too pale for a line
            plot_around(axes, summed(series, site, statistics), swap_step, color=color, label=f"layer {number + 1}")
        axes.set_title(title, loc="left", pad=18)
        axes.set_ylim(bottom=0)
        mark_swap(axes, swap_step)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(sites), frameon=False)
    figure.suptitle("The activations' inputs in training, one line for each hidden layer")
    _save(figure, path)


def summed(series: dict[str, Series], site: str, statistics: tuple[str, ...]) -> Series:
    """Return the sum of a site's statistics, at the steps of the first."""
    steps, _ = series[f"curvature/{site}/{statistics[0]}"]
    parts = [series[f"curvature/{site}/{statistic}"] for statistic in statistics]
    by_step = [dict(zip(*part, strict=True)) for part in parts]
    return steps, [sum(part[step] for part in by_step) for step in steps]


def plot_around(
    axes: "Axes", series: Series, swap_step: int, *, color: tuple[float, float, float, float], label: str
) -> None:
    """Draw a line that is broken at the swap: what lies between two activations was measured of neither.

    Args:
        axes: Where.
        series: Steps and values.
        swap_step: The first step after the swap.
        color: Of the line.
        label: Its name in the legend.
    """
    pairs = list(zip(*series, strict=True))
    before, after = [p for p in pairs if p[0] < swap_step], [p for p in pairs if p[0] >= swap_step]
    for points, name in ((before, label), (after, None)):
        axes.plot([x for x, _ in points], [y for _, y in points], color=color, linewidth=1.5, label=name, clip_on=False)


def mark_swap(axes: "Axes", swap_step: int) -> None:
    """Draw the swap as a dashed line with the names of both activations above it; take the frame's upper half away."""
    axes.axvline(swap_step, color="0.4", linewidth=1, linestyle="--")
    for text, side, offset in (("ReLU", "right", -5), ("GELU", "left", 5)):
        axes.annotate(  # above the frame, where no curve is
            text,
            (swap_step, 1),
            xycoords=("data", "axes fraction"),
            xytext=(offset, 4),
            textcoords="offset points",
            ha=side,
            va="bottom",
            color="0.3",
            fontsize=9,
        )
    axes.set_xlabel("step")
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: "Figure", path: Path) -> None:
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=130)
