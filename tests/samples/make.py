"""Write a set of the files that users keep, with the code that is installed, and what that code read from them.

    python tests/samples/make.py FOLDER

A set is made once, by the code of its time, and never again: `test_samples.py` shows that later code still reads it.
The folders beside this script are named for the commit whose code wrote them.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lit_gelu import activations
from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
    ActivationSwap,
    ExactResume,
    LossCurvatureMonitor,
    load_from_checkpoint,
)
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx, tune
from lit_gelu.tasks import CIFAR10ConvNet

SHAPE = (3, 32, 32)
SPECS = ["gelu", "gelu(approximate='tanh')", "swish(beta=1.5, learnable=True)", "cauchy_linear", "hardswish"]


def batches() -> torch.utils.data.DataLoader[Any]:
    """Return four batches of random images, in a new order each epoch."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(32, *SHAPE, generator=generator), torch.randint(10, (32,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=8, shuffle=True)


def images() -> torch.Tensor:
    """Return what the files are asked about."""
    return torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(1))


def callbacks() -> list[Any]:
    """Return every callback of ours that leaves something in a checkpoint."""
    return [
        ActivationSwap({"activation:gelu": "swish(beta=1.25)"}, at_step=3),
        ActivationCurvatureMonitor(every_n_steps=2),
        LossCurvatureMonitor(every_n_steps=4),
        ExactResume(),
    ]


def trainer(folder: Path, ours: list[Any], **options: Any) -> Trainer:
    """Return a quiet Trainer that keeps its last checkpoint."""
    kept = ModelCheckpoint(dirpath=folder, filename="last", save_top_k=-1, every_n_train_steps=6)
    return Trainer(
        accelerator="cpu",
        logger=CSVLogger(folder / "logs", name=None, version="") if ours else False,
        callbacks=[*ours, kept],
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **{"max_steps": 6} | options,
    )


CURVATURE = ["MNISTClassifier", "--data", "DigitsData", "--samples", "64"]
CURVATURE += ["--lanczos_steps", "6", "--trace_probes", "4", "--density_steps", "6"]
CURVATURE += ["--json", "curvature.json", "--csv", "curvature.csv"]


def curvature(folder: Path) -> dict[str, Any]:
    """Return what ``lit-gelu curvature`` writes of an untrained net."""
    command = [sys.executable, "-P", "-m", "lit_gelu", "curvature", *CURVATURE]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    said = {"json": json.loads((folder / "curvature.json").read_text())}
    with (folder / "curvature.csv").open() as rows:
        said["csv"] = list(csv.reader(rows))
    for path in folder.glob("curvature.*"):
        path.unlink()
    return said


def write(folder: Path) -> None:
    """Write every file and ``said.json``."""
    folder.mkdir(parents=True)
    said: dict[str, Any] = {"specs": {spec: str(activations.spec_of(activations.create(spec))) for spec in SPECS}}
    for name, ours in {"plain": [], "swapped": callbacks()}.items():
        seed_everything(0)
        runner = trainer(folder, ours)
        runner.fit(CIFAR10ConvNet("gelu", channels=(4, 6), epochs=2), batches())
        (folder / "last.ckpt").rename(folder / f"{name}.ckpt")
        model = load_from_checkpoint(CIFAR10ConvNet, folder / f"{name}.ckpt", map_location="cpu").eval()
        with torch.no_grad():
            said[name] = {"output": model(images()).tolist()}
        if ours:
            with (folder / "logs" / "metrics.csv").open() as rows:
                said["logged"] = next(csv.reader(rows))
            shutil.rmtree(folder / "logs")
        path = folder / f"{name}.onnx"
        export_onnx(model, path, images(), approximate="tanh" if name == "plain" else "as_trained")
        report = check_parity(model, path, images())
        (folder / f"{name}.parity.json").write_text(report.to_json())
        said[name]["file"] = OnnxPredictor(path, providers=["CPUExecutionProvider"])(images()).tolist()
    said["curvature"] = curvature(folder)
    tune(folder / "plain.onnx", images(), providers=["CPUExecutionProvider"], seconds=0.2)
    (folder / "said.json").write_text(json.dumps(said, indent=1))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    write(Path(sys.argv[1]))
