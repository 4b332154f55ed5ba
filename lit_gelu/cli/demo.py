"""``lit-gelu demo``: train, swap, measure curvature, export and check parity in one go."""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import jsonargparse
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console
from rich.table import Table

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap
from lit_gelu.cli.demo_plots import plot_curvature, plot_training
from lit_gelu.cli.options import command_parser
from lit_gelu.cli.terminal import console_for_output, silence_known_warnings
from lit_gelu.data import DigitsData
from lit_gelu.errors import LitGeluError
from lit_gelu.export import OnnxPredictor, ParityReport, check_parity, export_onnx, write_proof
from lit_gelu.extras import need
from lit_gelu.files import write_atomically
from lit_gelu.numbers_given import MOST_SEED, is_count
from lit_gelu.tasks import MNISTClassifier

EXAMPLES = """\
examples:
  lit-gelu demo                                 everything into runs/demo, about 20 seconds on two cores
  lit-gelu demo --output /tmp/demo --epochs 6   shorter, elsewhere
"""
DESCRIPTION = (
    "Train MNISTClassifier on the bundled digits with ReLU, swap to GELU midway while the curvature is logged, export "
    "the exact, the tanh and the sigmoid form, and check that each file computes what PyTorch does."
)
FORMS = {"exact": "none", "tanh": "tanh", "sigmoid": "sigmoid"}
MONITOR_EVERY = 20


class DemoArgumentError(LitGeluError, ValueError):
    """An argument of the demo that is not accepted."""


@dataclass(frozen=True)
class ExportedForm:
    """One exported file and what was found of it, on the test images."""

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


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser of ``lit-gelu demo``."""
    parser = command_parser("demo", EXAMPLES, DESCRIPTION)
    parser.add_argument("--output", metavar="FOLDER", default="runs/demo", help="where everything is written")
    parser.add_argument("--epochs", type=int, default=24, help="of training; the swap comes after half of them")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and random inputs")
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu demo``."""
    if arguments.epochs < 2:
        raise DemoArgumentError(
            f"--epochs {arguments.epochs} is not accepted: the swap comes midway, so give at least 2."
        )
    if not is_count(arguments.seed) or arguments.seed > MOST_SEED:
        raise DemoArgumentError(f"--seed {arguments.seed} is not accepted. Give an integer from 0 to {MOST_SEED}.")
    for library in ("sklearn", "matplotlib"):  # the second is needed at the end only: it is missed before the training
        need(library, extra="demo", what="lit-gelu demo")
    folder, console = _made_folder(arguments.output), console_for_output()
    data = DigitsData()
    console.rule("1/3  train with ReLU, swap to GELU midway")
    model, metrics, swap_step = train(data, folder, arguments.epochs, arguments.seed, console)
    console.rule("2/3  export and check parity")
    exported = [export_form(model, data, folder, name, arguments.seed, console) for name in FORMS]
    console.rule("3/3  plots and summary")
    plot_training(metrics, folder / "training.png", swap_step)
    plot_curvature(metrics, folder / "curvature.png", swap_step)
    with write_atomically(folder / "summary.json") as temporary:
        temporary.write_text(json.dumps([asdict(form) for form in exported], indent=2) + "\n")
    console.print(_summary(exported))
    written = ("training.png", "curvature.png", "summary.json", *(form.file for form in exported))
    console.print(f"{folder}: {', '.join(written)}; training log {metrics}", soft_wrap=True)
    return 0 if all(form.passed for form in exported) else 1


def _made_folder(path: str) -> Path:
    """Make the folder, before the training."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise DemoArgumentError(f"--output {path!r} is a file, or lies below one. Give a folder.") from error
    return folder


def train(
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
    swap = ActivationSwap({"activation:relu": "gelu"}, at_epoch=epochs // 2, curvature=True)
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


def export_form(
    model: LightningModule, data: DigitsData, folder: Path, name: str, seed: int, console: Console
) -> ExportedForm:
    """Export one form of GELU and check it on the test images."""
    path = folder / f"gelu_{name}.onnx"
    with console.status(f"{name}: export, then parity on the test images and on extreme inputs"):
        export_onnx(model, path, approximate=FORMS[name])
        report = check_parity(model, path, data, strict=False, seed=seed)
        write_proof(report, path, [])  # into the file itself, as lit-gelu export does
        wrong, count = _errors(OnnxPredictor(path), data)
    console.print(f"{path}: {'passed' if report.passed else 'FAILED'}", soft_wrap=True)
    for row in report.failures:
        console.print(f"  {row}", soft_wrap=True)
    rows = {row.comparison.partition(":")[0]: row for row in report.rows if row.inputs == "data"}
    gap = rows.get("approximation gap")  # none for the form that was trained
    return ExportedForm(
        file=path.name,
        form=name,
        bytes=path.stat().st_size,
        activation_operators=_activation_operators(report),
        error_float32=rows["file vs PyTorch float32"].max_abs_error,
        error_float64=rows["file vs PyTorch float64"].max_abs_error,
        approximation_gap=gap.max_abs_error if gap else None,
        same_class=(gap or rows["file vs PyTorch float32"]).top1_agreement,
        test_error=wrong / count,
        provider=report.provider,
        passed=report.passed,
    )


def _errors(predictor: OnnxPredictor, data: DigitsData) -> tuple[int, int]:
    """Count the test images that a file gets wrong, and all of them."""
    wrong = count = 0
    for images, labels in data.test_dataloader():
        wrong += int((predictor(images).argmax(-1) != labels).sum())
        count += len(labels)
    return wrong, count


def _activation_operators(report: ParityReport) -> dict[str, int]:
    """Return the file's operators without those of linear layers."""
    return {
        name: count for name, count in report.census.items() if name not in {"Gemm", "MatMul", "Reshape", "Flatten"}
    }


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
