"""The demo's plots, drawn from the CSV log of its training."""

import csv
from collections import defaultdict
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_gelu.files import write_atomically

Series = tuple[list[int], list[float]]

PANELS = {
    "standard_deviation": "standard deviation of the pre-activation",
    "mean_abs_second_derivative": "mean |f''| (kinks not counted)",
    "share_decreasing": "share of inputs where f' < 0",
    "mean_squared_derivative": "mean f'^2, the gain of squared gradients",
}


def read_log(path: Path) -> dict[str, Series]:
    r"""Read Lightning's CSV log.

    Args:
        path: ``metrics.csv``.

    Returns:
        Steps and values by logged name.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "metrics.csv"
        >>> _ = path.write_text("step,train_loss\n4,0.5\n9,\n")
        >>> read_log(path)
        {'train_loss': ([4], [0.5])}
    """
    series: dict[str, Series] = defaultdict(lambda: ([], []))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name not in {"step", "epoch"}:
                    series[name][0].append(int(row["step"]))
                    series[name][1].append(float(value))
    return dict(series)


def plot_training(log: Path, path: Path, swap_step: int) -> None:
    """Draw losses and validation error over the steps, with the swap marked.

    Args:
        log: The CSV log.
        path: The file to write.
        swap_step: The step of the swap.
    """
    series = read_log(log)
    figure = Figure(figsize=(11, 4), layout="constrained")
    losses, errors = figure.subplots(1, 2)
    losses.plot(*series["train_loss"], label="training", linewidth=1, alpha=0.8)
    losses.plot(*series["val_loss"], label="validation", linewidth=2)
    losses.set_yscale("log")
    losses.set_title("cross-entropy")
    losses.legend(frameon=False)
    steps, values = series["val_error"]
    errors.plot(steps, [100 * value for value in values], linewidth=2, color="C1")
    errors.set_title("validation error, %")
    errors.set_ylim(bottom=0)
    for axes in (losses, errors):
        _finish(axes, swap_step)
    _save(figure, path)


def plot_curvature(log: Path, path: Path, swap_step: int) -> None:
    """Draw what the monitor logged: one panel a statistic, one line a site, light for the first and dark for the last.

    Args:
        log: The CSV log.
        path: The file to write.
        swap_step: The step of the swap.
    """
    series = read_log(log)
    figure = Figure(figsize=(11, 7), layout="constrained")
    for axes, (statistic, title) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        logged = [name for name in series if name.startswith("curvature/") and name.endswith(f"/{statistic}")]
        names = [name for name in logged if "/gaussian/" not in name]
        for number, name in enumerate(sorted(names)):
            shade = 0.75 - 0.65 * number / max(1, len(names) - 1)
            axes.plot(*series[name], color=(shade * 0.6, shade * 0.8, shade * 0.3 + 0.6), linewidth=1.5)
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        _finish(axes, swap_step)
    figure.suptitle("every hidden layer's activation, light: first, dark: last")
    _save(figure, path)


def _finish(axes: Axes, swap_step: int) -> None:
    axes.axvline(swap_step, color="0.4", linewidth=1, linestyle="--")
    axes.annotate(
        "ReLU | GELU",
        (swap_step, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, -11),
        textcoords="offset points",
        ha="center",
        color="0.3",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
    axes.set_xlabel("step")
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=130)
