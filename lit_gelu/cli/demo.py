"""``lit-gelu demo``: train, swap, measure curvature, export and check parity in one go."""

import csv
import json
import logging
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console
from rich.table import Table

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap
from lit_gelu.cli.terminal import console_for_output, silence_known_warnings
from lit_gelu.data import DigitsData
from lit_gelu.errors import ArgumentError
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx, write_proof
from lit_gelu.extras import need
from lit_gelu.files import write_atomically
from lit_gelu.tasks import MNISTClassifier

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMS = {"exact": "none", "tanh": "tanh", "sigmoid": "sigmoid"}
MONITOR_EVERY = 20
_MOST_SEED = 2**32 - 1  # what seed_everything takes
_OF_LINEAR_LAYERS = {"Gemm", "MatMul", "Reshape", "Flatten"}
_PANELS = {
    ("standard_deviation",): "standard deviation of the pre-activation",
    # ReLU bends at 0 alone: there the mean of |f''| is 0, and all of its curvature is the kink's.
    ("mean_abs_second_derivative", "kink_mass"): "curvature: mean of |f''|, kinks included",
    ("share_decreasing",): "share of inputs where f' < 0",
    ("mean_squared_derivative",): "mean of f'^2, the gain of squared gradients",
}

Series = tuple[list[int], list[float]]
"""Steps and values."""


@dataclass(frozen=True)
class ExportedForm:
    """One exported file, on the test images."""

    file: str
    form: str  # of GELU
    bytes: int
    activation_operators: dict[str, int]
    error_float32: float  # largest absolute difference from PyTorch float32 of the same form
    error_float64: float
    approximation_gap: float | None  # the same from the module as trained; None if it has that form
    same_class: float | None  # share of images with the same class as the module as trained
    test_error: float
    provider: str  # that ran it
    passed: bool


def demo(*, output: str = "runs/demo", epochs: int = 24, seed: int = 0) -> int:
    """Train on the bundled digits with ReLU, swap to GELU midway, export its three forms, and check each file.

    The curvature is logged while MNISTClassifier is trained, and drawn at the end.

    in a shell:
      lit-gelu demo                                 everything into runs/demo, about 20 seconds on two cores
      lit-gelu demo --output /tmp/demo --epochs 6   shorter, elsewhere

    Args:
        output: the folder into which everything is written
        epochs: of training; the swap comes after half of them
        seed: of weights, batches and random inputs
    """
    if epochs < 2 or not 0 <= seed <= _MOST_SEED:
        raise ArgumentError(
            f"--epochs {epochs} --seed {seed} is not accepted. The swap comes midway, so give at least 2 epochs, and a "
            f"seed from 0 to {_MOST_SEED}."
        )
    for library in ("sklearn", "matplotlib"):  # the second is needed at the end only: it is missed before the training
        need(library, extra="demo", what="lit-gelu demo")
    folder, console, data = Path(output), console_for_output(), DigitsData()
    folder.mkdir(parents=True, exist_ok=True)
    console.rule("1/3  train with ReLU, swap to GELU midway")
    model, metrics, swap_step = _train(data, folder, epochs, seed, console)
    console.rule("2/3  export and check parity")
    exported = [_export_form(model, data, folder, name, seed, console) for name in FORMS]
    console.rule("3/3  plots and summary")
    series = read_log(metrics)
    for name, figure in (
        ("training", _draw_training(series, swap_step)),
        ("curvature", _draw_curvature(series, swap_step)),
    ):
        with write_atomically(folder / f"{name}.png") as temporary:
            figure.savefig(temporary, dpi=130)
    with write_atomically(folder / "summary.json") as temporary:
        temporary.write_text(json.dumps([asdict(form) for form in exported], indent=2) + "\n")
    console.print(_summary(exported))
    written = ("training.png", "curvature.png", "summary.json", *(form.file for form in exported))
    console.print(f"{folder}: {', '.join(written)}; training log {metrics}", soft_wrap=True)
    return 0 if all(form.passed for form in exported) else 1


def _train(
    data: DigitsData, folder: Path, epochs: int, seed: int, console: Console
) -> tuple[LightningModule, Path, int]:
    """Train with ReLU, and with GELU from half-way on."""
    seed_everything(seed, verbose=False)
    silence_known_warnings()
    torch.set_num_threads(1)  # a net this small is ten times slower with threads that contend for two cores
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)  # hints about hardware are not the demo's subject
    logger = CSVLogger(folder, name="logs")
    model = MNISTClassifier(activation="relu")
    swap = ActivationSwap({"activation:relu": "gelu"}, at_epoch=epochs // 2)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=logger,
        log_every_n_steps=10,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[RichProgressBar(), swap, ActivationCurvatureMonitor(every_n_steps=MONITOR_EVERY)],
    )
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    swap_step = (epochs // 2) * (trainer.global_step // epochs)
    if swap.report is not None:
        console.print(f"step {swap_step}: {len(swap.report)} sites swapped, {swap.report.rows[0].old} -> gelu")
    console.print(f"test error {result['test_error']:.2%}, test loss {result['test_loss']:.3f}")
    return model, Path(logger.log_dir) / "metrics.csv", swap_step


def _export_form(
    model: LightningModule, data: DigitsData, folder: Path, name: str, seed: int, console: Console
) -> ExportedForm:
    """Export one form of GELU and check it on the test images."""
    path = folder / f"gelu_{name}.onnx"
    with console.status(f"{name}: export, then parity on the test images and on extreme inputs"):
        export_onnx(model, path, approximate=FORMS[name])
        report = check_parity(model, path, data, strict=False, seed=seed)
        write_proof(report, path, [])  # into the file itself, as lit-gelu export does
        predictor = OnnxPredictor(path)
        wrong = [predictor(images).argmax(-1) != labels for images, labels in data.test_dataloader()]
    console.print(f"{path}: {'passed' if report.passed else 'FAILED'}", soft_wrap=True)
    for row in report.failures:
        console.print(f"  {row}", soft_wrap=True)
    rows = {row.comparison.partition(":")[0]: row for row in report.rows if row.inputs == "data"}
    gap = rows.get("approximation gap")  # none for the form that was trained
    return ExportedForm(
        file=path.name,
        form=name,
        bytes=path.stat().st_size,
        activation_operators={o: n for o, n in report.census.items() if o not in _OF_LINEAR_LAYERS},
        error_float32=rows["file vs PyTorch float32"].max_abs_error,
        error_float64=rows["file vs PyTorch float64"].max_abs_error,
        approximation_gap=gap.max_abs_error if gap else None,
        same_class=(gap or rows["file vs PyTorch float32"]).top1_agreement,
        test_error=float(torch.cat(wrong).double().mean()),
        provider=report.provider,
        passed=report.passed,
    )


def _summary(exported: list[ExportedForm]) -> Table:
    caption = (
        "error: largest difference of a logit from PyTorch with the same form, float32 or float64; "
        "gap: from the module as trained; same class: as the module as trained"
    )
    table = Table(title="exported files, on the 360 test images", caption=caption, title_justify="left")
    for column in ("file", "operators", "kB", "error", "gap", "same class", "test error", "parity"):
        table.add_column(column, justify="left" if column in {"file", "operators", "parity"} else "right")
    for form in exported:
        gap, same_class = form.approximation_gap, form.same_class
        table.add_row(
            form.file,
            ", ".join(f"{count} {name}" for name, count in form.activation_operators.items()),
            f"{form.bytes / 1000:.0f}",
            f"{max(form.error_float32, form.error_float64):.1e}",
            "-" if gap is None else f"{gap:.1e}",
            "-" if same_class is None else f"{same_class:.1%}",
            f"{form.test_error:.2%}",
            "passed" if form.passed else "FAILED",
        )
    return table


def read_log(path: Path) -> dict[str, Series]:
    """Read Lightning's CSV log."""
    series: dict[str, Series] = defaultdict(lambda: ([], []))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name not in {"step", "epoch"}:
                    series[name][0].append(int(row["step"]))
                    series[name][1].append(float(value))
    return dict(series)


def _draw_training(series: dict[str, Series], swap_step: int) -> "Figure":
    """Draw losses and validation error over the steps, with the swap marked."""
    from matplotlib.figure import Figure

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
    return figure


def _draw_curvature(series: dict[str, Series], swap_step: int) -> "Figure":
    """Draw what the monitor logged: one panel a statistic, one line a site, from light for the first to dark."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    sites = sorted({name.split("/")[1] for name in series if name.startswith("curvature/hidden.")})
    for axes, (statistics, title) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        for number, site in enumerate(sites):
            color = colormaps["viridis"](0.9 - 0.9 * number / max(1, len(sites) - 1))  # its yellow end is too pale
            plot_around(axes, summed(series, site, statistics), swap_step, color=color, label=f"layer {number + 1}")
        axes.set_title(title, loc="left", pad=18)
        axes.set_ylim(bottom=0)
        mark_swap(axes, swap_step)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(sites), frameon=False)
    figure.suptitle("The activations' inputs in training, one line for each hidden layer")
    return figure


def summed(series: dict[str, Series], site: str, statistics: tuple[str, ...]) -> Series:
    """Return the sum of a site's statistics, at the steps of the first."""
    steps, _ = series[f"curvature/{site}/{statistics[0]}"]
    by_step = [dict(zip(*series[f"curvature/{site}/{statistic}"], strict=True)) for statistic in statistics]
    return steps, [sum(part[step] for part in by_step) for step in steps]


def plot_around(
    axes: "Axes", series: Series, swap_step: int, *, color: tuple[float, float, float, float], label: str
) -> None:
    """Draw a line that is broken at the swap: what lies between two activations was measured of neither."""
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
