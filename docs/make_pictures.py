"""Draws the pictures of README.md and docs/start.md: ``make pictures``. Everything on them is computed here.

One run of ``lit-gelu demo`` gives training, curvature and proof; `choose` gives the comparison. A minute on two cores.
"""

import argparse
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lit_gelu.activations import functional
from lit_gelu.choose import ActivationChoice, choose
from lit_gelu.cli.demo import FORMS
from lit_gelu.cli.demo import demo as run_demo
from lit_gelu.data import DigitsData
from lit_gelu.files import write_atomically
from lit_gelu.report import LoggedCurve
from lit_gelu.report.sources import read_metrics_csv
from lit_gelu.tasks import MNISTClassifier

IMAGES = Path(__file__).resolve().parent / "images"
LARGEST = 60_000  # bytes of a picture: a page of five loads in a second on a slow line
# Okabe and Ito's palette, which people with colour blindness can tell apart.
COLOURS = {"relu": "#000000", "elu": "#E69F00", "gelu": "#0072B2", "silu": "#D55E00", "mish": "#009E73"}
NAMES = {"relu": "ReLU", "elu": "ELU", "gelu": "GELU", "silu": "SiLU", "mish": "Mish"}
EPOCHS = 24
# ReLU bends at 0 alone: there the mean of |f''| is 0, and all of its curvature is the kink's.
CURVATURE = ("mean_abs_second_derivative", "kink_mass")
ROOM = 18.0  # points between a panel and its title, for the names beside the swap


def save(figure: Figure, name: str) -> None:
    """Write a figure as a PNG file of 64 colours; refuse one that is larger than a page should have to load."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110, metadata={"Software": None}, facecolor="white")
    small = io.BytesIO()
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    if small.tell() > LARGEST:
        raise ValueError(f"{name}.png would have {small.tell():,} bytes; at most {LARGEST:,} are accepted.")
    with write_atomically(IMAGES / f"{name}.png") as path:
        path.write_bytes(small.getvalue())
    print(f"wrote {name}.png, {small.tell():,} bytes")


def plain(axes: Axes, title: str, x: str, room: float = 6.0) -> None:
    """Give a panel its title and the name of its abscissa, without a frame."""
    axes.set_title(title, loc="left", fontsize=10, pad=room)
    axes.set_xlabel(x)
    axes.spines[["top", "right"]].set_visible(False)


def draw_functions(axes: Axes, order: int) -> None:
    """Draw f, f' or f'' of five activations."""
    x = torch.linspace(-4, 3, 701, dtype=torch.float64)
    for name, colour in COLOURS.items():
        y = functional.derivative(name, x, order)
        y[1:][(y[1:] - y[:-1]).abs() > 0.5] = torch.nan  # a jump is no slope
        dashes = (0, (4, 2)) if name == "elu" else "-"  # right of 0 ReLU lies under it
        axes.plot(x.numpy(), y.numpy(), color=colour, label=NAMES[name], linewidth=1.6, linestyle=dashes)


def activations() -> Figure:
    """Draw f, f' and f'' of five activations side by side."""
    figure = Figure(figsize=(9.6, 3.0), layout="constrained")
    panels = figure.subplots(1, 3)
    for order, (axes, title) in enumerate(zip(panels, ("f: value", "f': slope", "f'': curvature"), strict=True)):
        draw_functions(axes, order)
        plain(axes, title, "x")
        axes.grid(color="#E6E6E6", linewidth=0.6)
    panels[0].set_ylim(-1.2, 3)
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def draw_layers(axes: Axes, log: Mapping[str, LoggedCurve], statistics: tuple[str, ...], swap_step: int) -> None:
    """Draw the sum of some statistics of every hidden layer's activation, from light for the first to dark."""
    sites = sorted({name.split("/")[1] for name in log if name.startswith("curvature/hidden.")})
    for number, site in enumerate(sites):
        curves = [log[f"curvature/{site}/{statistic}"] for statistic in statistics]
        by_step = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
        summed = tuple(sum(values[step] for values in by_step) for step in curves[0].steps)
        color = colormaps["viridis"](0.9 - 0.9 * number / max(1, len(sites) - 1))  # its yellow end is too pale
        curve = LoggedCurve(f"layer {number + 1}", curves[0].steps, summed)
        plot_around(axes, curve, swap_step, color=color)


def plot_around(axes: Axes, curve: LoggedCurve, swap_step: int, *, color: tuple[float, ...]) -> None:
    """Draw a line that is broken at the swap: what lies between two activations was measured of neither."""
    pairs = list(zip(curve.steps, curve.values, strict=True))
    before, after = [p for p in pairs if p[0] < swap_step], [p for p in pairs if p[0] >= swap_step]
    for points, name in ((before, curve.name), (after, None)):
        axes.plot([x for x, _ in points], [y for _, y in points], color=color, linewidth=1.5, label=name, clip_on=False)


def mark_swap(axes: Axes, swap_step: int) -> None:
    """Draw the swap as a dashed line with the names of both activations above it; take the frame's upper half away."""
    axes.axvline(swap_step, color="0.4", linewidth=1, linestyle="--")
    for text, side in (("ReLU  ", "right"), ("  GELU", "left")):  # above the frame, where no curve is
        across = axes.get_xaxis_transform()
        axes.text(swap_step, 1.02, text, transform=across, ha=side, va="bottom", color="0.3", fontsize=9)
    axes.set_xlabel("step")
    axes.spines[["top", "right"]].set_visible(False)


def draw_loss(axes: Axes, log: dict[str, LoggedCurve], swap_step: int) -> None:
    """Draw the validation loss of the run, broken at the swap."""
    plot_around(axes, log["val_loss"], swap_step, color=(0.0, 0.45, 0.7, 1.0))
    axes.set_ylim(bottom=0)
    mark_swap(axes, swap_step)


def draw_curvature(axes: Axes, log: dict[str, LoggedCurve], swap_step: int) -> None:
    """Draw the curvature of every hidden layer's activation, from light for the first to dark."""
    draw_layers(axes, log, CURVATURE, swap_step)
    axes.set_ylim(bottom=0)
    mark_swap(axes, swap_step)


def draw_errors(axes: Axes, proofs: dict[str, dict[str, float]]) -> None:
    """Draw how far each exported file is from PyTorch, and how far its form of GELU is from the trained one."""
    for place, (form, errors) in enumerate(proofs.items()):
        error = errors["file vs PyTorch float64"]
        axes.plot([error], [place], "o", color="#0072B2", label="from the same form in PyTorch" if not place else None)
        if form != "exact":
            gap = errors["approximation gap"]
            axes.plot([gap], [place], "D", color="#D55E00", label="from the trained form" if place == 1 else None)
    axes.set_xscale("log")
    axes.set_xlim(1e-6, 10)
    axes.set_yticks(range(len(proofs)), list(proofs))
    axes.set_ylim(len(proofs) + 0.6, -0.5)
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8, loc="lower center")


def overview(log: dict[str, LoggedCurve], swap_step: int, proofs: dict[str, dict[str, float]]) -> Figure:
    """Draw the four steps of the README's first sentences in one row."""
    figure = Figure(figsize=(12.0, 2.9), layout="constrained")
    first, second, third, fourth = figure.subplots(1, 4)
    draw_functions(first, 0)
    first.set_ylim(-1.2, 3)
    first.legend(frameon=False, fontsize=8)
    plain(first, "1  name an activation", "x")
    draw_loss(second, log, swap_step)
    plain(second, "2  swap it while it trains", "step; validation loss", ROOM)
    draw_curvature(third, log, swap_step)
    plain(third, "3  watch each layer's curvature", "step; mean of |f''|, kinks included", ROOM)
    draw_errors(fourth, proofs)
    plain(fourth, "4  export, and prove the file", "largest difference of a logit")
    return figure


def alone(draw: Callable[[Axes], None], title: str, x: str, room: float = 6.0) -> Figure:
    """Draw one panel as a picture of its own."""
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    plain(axes, title, x, room)
    return figure


def demo(folder: Path) -> tuple[dict[str, LoggedCurve], int, dict[str, dict[str, float]]]:
    """Run ``lit-gelu demo``; return its log, the step of the swap, and by form the largest errors of its file."""
    run_demo(output=str(folder), epochs=EPOCHS)
    log = {curve.name: curve for curve in read_metrics_csv(folder / "logs" / "version_0" / "metrics.csv")}
    last = log["val_loss"].steps  # the number of each epoch's last step
    proofs = {}
    for form in FORMS:
        rows = json.loads((folder / f"gelu_{form}.json").read_text())["rows"]
        data = [row for row in rows if row["inputs"] == "data"]
        proofs[form] = {row["comparison"].partition(":")[0]: row["max_abs_error"] for row in data}
    return log, last[EPOCHS // 2 - 1] + 1, proofs


def comparison(folder: Path) -> ActivationChoice:
    """Train the paper's MNIST net, on the bundled digits, with five activations and five seeds."""
    build = partial(MNISTClassifier, hidden_layers=4)
    return choose(build, list(COLOURS), DigitsData(), seeds=5, max_epochs=8, folder=folder)


def main() -> None:
    """Compute everything, and write the pictures."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    save(activations(), "activations")
    with tempfile.TemporaryDirectory() as folder:
        log, swap_step, proofs = demo(Path(folder) / "demo")
        choice = comparison(Path(folder) / "choice")
    save(overview(log, swap_step, proofs), "overview")
    loss = partial(draw_loss, log=log, swap_step=swap_step)
    save(alone(loss, "validation loss", "step", ROOM), "training")
    curvature = partial(draw_curvature, log=log, swap_step=swap_step)
    title = "curvature of the hidden layers' activations, first layer light, last dark"
    save(alone(curvature, title, "step", ROOM), "curvature")
    proof = partial(draw_errors, proofs=proofs)
    save(alone(proof, "exported files on 360 test images", "largest difference of a logit"), "proof")
    save(choice.draw_differences(), "choice")
    print(choice)


if __name__ == "__main__":
    main()
