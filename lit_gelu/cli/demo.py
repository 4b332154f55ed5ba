"""``lit-gelu demo``: train, swap, measure curvature, export and check parity in one go."""

import logging
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import CSVLogger

from lit_gelu.arguments import MOST_SEED
from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, RunReport
from lit_gelu.cli.terminal import console_for_output, silence_known_warnings, write_text
from lit_gelu.data import DigitsData
from lit_gelu.errors import ArgumentError
from lit_gelu.export import check_parity, export_onnx, write_proof
from lit_gelu.extras import need
from lit_gelu.tasks import MNISTClassifier

FORMS = {"exact": "none", "tanh": "tanh", "sigmoid": "sigmoid"}


def demo(*, output: str = "runs/demo", epochs: int = 24, seed: int = 0) -> int:
    """Train on the bundled digits with ReLU, swap to GELU midway, export its three forms, and check each file.

    The curvature is logged while MNISTClassifier is trained; report.html draws it beside the losses.

    in a shell:
      lit-gelu demo                                 everything into runs/demo, about 20 seconds on two cores
      lit-gelu demo --output /tmp/demo --epochs 6   shorter, elsewhere

    Args:
        output: the folder into which everything is written
        epochs: of training; the swap comes after half of them
        seed: of weights, batches and random inputs
    """
    if epochs < 2 or not 0 <= seed <= MOST_SEED:
        raise ArgumentError(
            f"--epochs {epochs} --seed {seed} is not accepted. The swap comes midway, so give at least 2 epochs, and a "
            f"seed from 0 to {MOST_SEED}."
        )
    need("sklearn", extra="demo", what="lit-gelu demo")
    folder, console, data = Path(output), console_for_output(soft_wrap=True), DigitsData()
    folder.mkdir(parents=True, exist_ok=True)
    console.print("1/2  train with ReLU, swap to GELU midway")
    seed_everything(seed, verbose=False)
    silence_known_warnings()
    torch.set_num_threads(1)  # a net this small is ten times slower with threads that contend for two cores
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)  # hints about hardware are not the demo's subject
    logger = CSVLogger(folder, name="logs")
    model = MNISTClassifier(activation="relu")
    swap = ActivationSwap({"activation:relu": "gelu"}, at_epoch=epochs // 2)
    monitor, page = ActivationCurvatureMonitor(every_n_steps=20), RunReport(str(folder / "report.html"))
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=logger,
        log_every_n_steps=10,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[RichProgressBar(), swap, monitor, page],
    )
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    if swap.report is not None:
        console.print(f"{len(swap.report)} sites swapped, {swap.report.rows[0].old} -> gelu")
    console.print(f"test error {result['test_error']:.2%}, test loss {result['test_loss']:.3f}")
    console.print("2/2  export, and check parity on the test images and on extreme inputs")
    passed = True
    for name, form in FORMS.items():
        path = folder / f"gelu_{name}.onnx"
        export_onnx(model, path, approximate=form)
        report = check_parity(model, path, data, strict=False, seed=seed)
        write_proof(report, path, [])  # into the file itself, as lit-gelu export does
        write_text(report.to_json(), str(path.with_suffix(".json")))
        write_text(report.to_html(), str(path.with_suffix(".html")))
        console.print(f"{path}: {report.summary()}")
        passed &= report.passed
    files = "report.html, and a proof as .html and .json beside each file"
    console.print(f"{folder}: {files}; training log {logger.log_dir}/metrics.csv")
    return 0 if passed else 1
