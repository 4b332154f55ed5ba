"""``lit-gelu demo``: train, swap, measure curvature, export and check parity in one go."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console
from rich.table import Table

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, RunReport
from lit_gelu.cli.terminal import console_for_output, silence_known_warnings, write_text
from lit_gelu.data import DigitsData
from lit_gelu.errors import ArgumentError
from lit_gelu.export import ParityReport, check_parity, export_onnx, write_proof
from lit_gelu.extras import need
from lit_gelu.files import write_atomically
from lit_gelu.report import LoggedCurve
from lit_gelu.report.sources import read_metrics_csv
from lit_gelu.tasks import MNISTClassifier

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMS = {"exact": "none", "tanh": "tanh", "sigmoid": "sigmoid"}
_MOST_SEED = 2**32 - 1  # what seed_everything takes
_OF_LINEAR_LAYERS = {"Gemm", "MatMul", "Reshape", "Flatten"}
# ReLU bends at 0 alone: there the mean of |f''| is 0, and all of its curvature is the kink's.
CURVATURE = ("mean_abs_second_derivative", "kink_mass")
_STATISTICS = {
    CURVATURE: "curvature: mean of |f''|, kinks included",
    ("mean_squared_derivative",): "mean of f'^2, the gain of squared gradients",
}


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
    reports: dict[Path, ParityReport] = {}
    for name, form in FORMS.items():
        path = folder / f"gelu_{name}.onnx"
        with console.status(f"{name}: export, then parity on the test images and on extreme inputs"):
            export_onnx(model, path, approximate=form)
            report = reports[path] = check_parity(model, path, data, strict=False, seed=seed)
            write_proof(report, path, [])  # into the file itself, as lit-gelu export does
            write_text(report.to_json(), str(path.with_suffix(".json")))
            write_text(report.to_html(), str(path.with_suffix(".html")))
        console.print(f"{path}: {'passed' if report.passed else 'FAILED'}", soft_wrap=True)
        for failure in report.failures:
            console.print(f"  {failure}", soft_wrap=True)
    console.rule("3/3  plot and summary")
    log = {curve.name: curve for curve in read_metrics_csv(metrics)}
    with write_atomically(folder / "training.png") as temporary:
        draw_training(log, swap_step).savefig(temporary, dpi=130)
    console.print(_summary(reports))
    files = " ".join(f"{path.name} {path.stem}.html {path.stem}.json" for path in reports)
    console.print(f"{folder}: report.html training.png {files}; training log {metrics}", soft_wrap=True)
    return 0 if all(report.passed for report in reports.values()) else 1


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
    monitor, report = ActivationCurvatureMonitor(every_n_steps=20), RunReport(str(folder / "report.html"))
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=logger,
        log_every_n_steps=10,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[RichProgressBar(), swap, monitor, report],
    )
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    swap_step = (epochs // 2) * (trainer.global_step // epochs)
    if swap.report is not None:
        console.print(f"step {swap_step}: {len(swap.report)} sites swapped, {swap.report.rows[0].old} -> gelu")
    console.print(f"test error {result['test_error']:.2%}, test loss {result['test_loss']:.3f}")
    return model, Path(logger.log_dir) / "metrics.csv", swap_step


def _summary(reports: Mapping[Path, ParityReport]) -> Table:
    caption = (
        "error: largest difference of a logit from PyTorch with the same form, in float64; "
        "gap: from the module as trained; same class: as the module as trained"
    )
    table = Table(title="exported files, on the 360 test images", caption=caption, title_justify="left")
    for column in ("file", "operators", "kB", "error", "gap", "same class", "test error", "parity"):
        table.add_column(column, justify="left" if column in {"file", "operators", "parity"} else "right")
    for path, report in reports.items():
        operators = {name: count for name, count in report.census.items() if name not in _OF_LINEAR_LAYERS}
        rows = {row.comparison.partition(":")[0]: row for row in report.rows if row.inputs == "data"}
        same_form = rows["file vs PyTorch float64"]
        gap = rows.get("approximation gap")  # none for the form that was trained
        same_class = (gap or same_form).top1_agreement
        (test_error,) = [metric.file for metric in report.metrics if metric.name == "test_error"]
        table.add_row(
            path.name,
            ", ".join(f"{count} {name}" for name, count in operators.items()),
            f"{path.stat().st_size / 1000:.0f}",
            f"{same_form.max_abs_error:.1e}",
            "-" if gap is None else f"{gap.max_abs_error:.1e}",
            "-" if same_class is None else f"{same_class:.1%}",
            f"{test_error:.2%}",
            "passed" if report.passed else "FAILED",
        )
    return table


def draw_training(log: Mapping[str, LoggedCurve], swap_step: int) -> "Figure":
    """Draw loss, validation error, and two statistics of the hidden layers' activations, with the swap marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    panels = list(figure.subplots(2, 2).flat)
    for name, label in (("train_loss", "training"), ("val_loss", "validation")):
        panels[0].plot(log[name].steps, log[name].values, label=label, linewidth=1.5)
    panels[0].set_yscale("log")
    panels[0].set_title("cross-entropy", loc="left", pad=18)
    panels[0].legend(frameon=False)
    panels[1].plot(log["val_error"].steps, [100 * value for value in log["val_error"].values], color="C1")
    panels[1].set_title("validation error, %", loc="left", pad=18)
    for axes, (statistics, title) in zip(panels[2:], _STATISTICS.items(), strict=True):
        draw_layers(axes, log, statistics, swap_step)
        axes.set_title(title, loc="left", pad=18)
    for axes in panels:
        mark_swap(axes, swap_step)
    for axes in panels[1:]:
        axes.set_ylim(bottom=0)
    handles, labels = panels[2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def draw_layers(axes: "Axes", log: Mapping[str, LoggedCurve], statistics: tuple[str, ...], swap_step: int) -> None:
    """Draw the sum of some statistics of every hidden layer's activation, from light for the first to dark."""
    from matplotlib import colormaps

    sites = sorted({name.split("/")[1] for name in log if name.startswith("curvature/hidden.")})
    for number, site in enumerate(sites):
        curves = [log[f"curvature/{site}/{statistic}"] for statistic in statistics]
        by_step = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
        summed = tuple(sum(values[step] for values in by_step) for step in curves[0].steps)
        color = colormaps["viridis"](0.9 - 0.9 * number / max(1, len(sites) - 1))  # its yellow end is too pale
        curve = LoggedCurve(f"layer {number + 1}", curves[0].steps, summed)
        plot_around(axes, curve, swap_step, color=color)


def plot_around(axes: "Axes", curve: LoggedCurve, swap_step: int, *, color: Any) -> None:
    """Draw a line that is broken at the swap: what lies between two activations was measured of neither."""
    pairs = list(zip(curve.steps, curve.values, strict=True))
    before, after = [p for p in pairs if p[0] < swap_step], [p for p in pairs if p[0] >= swap_step]
    for points, name in ((before, curve.name), (after, None)):
        axes.plot([x for x, _ in points], [y for _, y in points], color=color, linewidth=1.5, label=name, clip_on=False)


def mark_swap(axes: "Axes", swap_step: int) -> None:
    """Draw the swap as a dashed line with the names of both activations above it; take the frame's upper half away."""
    axes.axvline(swap_step, color="0.4", linewidth=1, linestyle="--")
    for text, side in (("ReLU  ", "right"), ("  GELU", "left")):  # above the frame, where no curve is
        across = axes.get_xaxis_transform()
        axes.text(swap_step, 1.02, text, transform=across, ha=side, va="bottom", color="0.3", fontsize=9)
    axes.set_xlabel("step")
    axes.spines[["top", "right"]].set_visible(False)
