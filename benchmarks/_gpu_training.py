"""The stages ``cifar10`` and ``wrn``: milliseconds a step with and without a monitor, then epochs, which add up.

Trained as ``examples/cifar10_gelu.yaml`` and ``examples/cifar100_wrn_gelu.yaml`` say, by the Trainer that
`lit-gelu fit` makes. Data come from ``LIT_GELU_DATA``; where they are not there, random images of the same number and
shape take their place, and the record says so: their times are as good, their losses mean nothing.
"""

import itertools
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _gpu_record import Record, Settings
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lit_gelu.callbacks import ActivationCurvatureMonitor
from lit_gelu.data import CIFAR10Data, CIFAR100Data
from lit_gelu.files import write_atomically
from lit_gelu.tasks import CIFAR10ConvNet, CIFAR100WideResNet

EVERY = 50  # steps between two logging steps
SHARE_FOR_STEPS = 0.5  # of the stage's time


@dataclass(frozen=True)
class Run:
    """A training run.

    Attributes:
        model: Makes the model for a number of epochs; small if that is said.
        data: Makes its data of an arrays file, or of the real set; what is fitted to it is kept in a folder.
        real: Folder or file below ``LIT_GELU_DATA`` that holds the set.
        classes: Of the set.
        samples: Of its training images.
        epochs: Of a whole run.
    """

    model: Callable[[int, bool], LightningModule]
    data: Callable[[Path | None, Path], LightningDataModule]
    real: tuple[str, ...]
    classes: int
    samples: int
    epochs: int


def _cifar10(epochs: int, quick: bool) -> LightningModule:
    return CIFAR10ConvNet(epochs=epochs, channels=(6, 12) if quick else (96, 192))


def _wide(epochs: int, quick: bool) -> LightningModule:
    small: dict[str, Any] = {"blocks_per_stage": 1, "width_factor": 1} if quick else {}
    return CIFAR100WideResNet(epochs=epochs, channels_last=True, **small)


def _cifar10_data(arrays: Path | None, cache: Path) -> LightningDataModule:
    return CIFAR10Data(arrays=arrays, batch_size=100, whiten=arrays is None, cache=cache)


def _cifar100_data(arrays: Path | None, _: Path) -> LightningDataModule:
    return CIFAR100Data(arrays=arrays, batch_size=128)


RUNS = {
    "cifar10": Run(_cifar10, _cifar10_data, ("cifar-10-batches-py", "cifar10.npz"), 10, 50_000, 200),
    "wrn": Run(_wide, _cifar100_data, ("cifar-100-python", "cifar100.npz"), 100, 50_000, 50),
}


class StepClock(Callback):
    """Times windows of steps; the device is waited for at their ends alone.

    Args:
        before: Steps that do not count.
        window: Steps of a window.

    Attributes:
        milliseconds: A step's, of each whole window.
    """

    def __init__(self, before: int, window: int) -> None:
        self.milliseconds: list[float] = []
        self._before, self._window = before, window
        self._seen, self._start = 0, 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        """Begin a window."""
        done = self._seen - self._before
        if done >= 0 and done % self._window == 0:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            now = time.perf_counter()
            if done:
                self.milliseconds.append(1000 * (now - self._start) / self._window)
            self._start = now
        self._seen += 1


class Epochs(Callback):
    """Keeps the figures of every epoch beside the checkpoint, and stops before the epoch that would not fit.

    Args:
        path: File of the curve.
        left: Gives the seconds that are left.
        most: How many epochs at most; 0 for no limit.
    """

    def __init__(self, path: Path, left: Callable[[], float], most: int) -> None:
        self.curve: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
        self._path, self._left, self._most = path, left, most
        self._start, self._done = 0.0, 0

    def on_train_epoch_start(self, *_: Any) -> None:
        """Note the time."""
        self._start = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Keep the figures."""
        seconds = time.perf_counter() - self._start
        figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
        row = {"epoch": trainer.current_epoch, "step": trainer.global_step, "seconds": round(seconds, 3), **figures}
        self.curve = [old for old in self.curve if old["epoch"] < trainer.current_epoch] + [row]
        with write_atomically(self._path) as temporary:
            temporary.write_text(json.dumps(self.curve) + "\n")
        self._done += 1
        if self._left() < 1.5 * seconds or self._done == self._most:
            trainer.should_stop = True


def run(record: Record, settings: Settings) -> None:
    """Time steps, then train epochs."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")  # advice about workers and intervals: not the stage's subject
    torch.set_float32_matmul_precision("high")
    plan = RUNS[settings.stage]
    with tempfile.TemporaryDirectory() as folder:
        data, source = data_of(plan, settings, Path(folder))
        record.content["data"] = source
        if source != "real":
            record.leave_out("losses", f"the images are made up: {source}")
        end = (1 - SHARE_FOR_STEPS) * record.left()
        record.figure("milliseconds a step", partial(steps, plan, data, settings, lambda: record.left() - end))
        earlier = record.figures.pop("epochs", None)  # a later call adds to it
        keep = folder_of(settings, source)
        if record.figure("epochs", partial(epochs, plan, data, settings, keep, record.left)) is None and earlier:
            record.figures["epochs"] = earlier


def data_of(plan: Run, settings: Settings, folder: Path) -> tuple[LightningDataModule, str]:
    """Return the data, and where they come from: ``real``, or in words what they are."""
    root = os.environ.get("LIT_GELU_DATA", "")
    if not settings.quick and root and any((Path(root) / name).exists() for name in plan.real):
        return plan.data(None, settings.keep), "real"
    samples = 400 if settings.quick else plan.samples
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", samples), ("test", max(samples // 5, plan.classes))):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % plan.classes
    path = folder / "random.npz"
    np.savez(path, **arrays)
    why = "--quick" if settings.quick else f"LIT_GELU_DATA has none of {', '.join(plan.real)}"
    return plan.data(path, settings.keep), f"{samples} random images, since {why}"


def trainer_of(settings: Settings, folder: Path, callbacks: list[Callback], **options: Any) -> Trainer:
    """Return the Trainer of the examples' configurations."""
    cuda = settings.device == "cuda"
    return Trainer(
        accelerator="gpu" if cuda else "cpu",
        devices=1,
        precision="bf16-mixed" if cuda else "32-true",
        logger=CSVLogger(folder),
        log_every_n_steps=EVERY,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


def ways(every: int) -> dict[str, Callable[[], list[Callback]]]:
    """Return what takes turns: callbacks by what they do."""
    return {
        "nothing": list,
        f"monitor, every {every} steps": lambda: [ActivationCurvatureMonitor(every_n_steps=every)],
        "monitor, every step": lambda: [ActivationCurvatureMonitor(every_n_steps=1)],
    }


def steps(plan: Run, data: LightningDataModule, settings: Settings, left: Callable[[], float]) -> dict[str, Any]:
    """Time steps with each set of callbacks in turn, for as long as there is time."""
    before, window, windows = (1, 2, 1) if settings.quick else (2 * EVERY, EVERY, 3)
    factories = ways(window)
    medians: dict[str, list[float]] = {name: [] for name in factories}
    for turn in itertools.count():
        names = list(factories)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seed_everything(0, verbose=False)
            clock = StepClock(before, window)
            with tempfile.TemporaryDirectory() as folder:
                count = before + windows * window + 1  # the last step's start closes the last window
                trainer = trainer_of(
                    settings,
                    Path(folder),
                    [clock, *factories[name]()],
                    max_steps=count,
                    limit_val_batches=0,
                    enable_checkpointing=False,
                )
                trainer.fit(plan.model(plan.epochs, settings.quick), datamodule=data)
            medians[name].append(statistics.median(clock.milliseconds))
        if settings.quick or left() <= 0 or turn == 6:
            break
    plain = medians["nothing"]
    return {
        "milliseconds": {name: statistics.median(times) for name, times in medians.items()},
        "beside nothing": {
            name: statistics.median(a / b for a, b in zip(times, plain, strict=True)) for name, times in medians.items()
        },
        "turns": len(plain),
        "all": medians,
    }


def folder_of(settings: Settings, source: str) -> Path:
    """Return where a run's checkpoints are, one folder for each kind of run."""
    kind = "quick" if settings.quick else "real" if source == "real" else "random"
    return settings.keep / f"{settings.stage}-{kind}"


def epochs(
    plan: Run, data: LightningDataModule, settings: Settings, keep: Path, left: Callable[[], float]
) -> dict[str, Any]:
    """Train whole epochs from the last checkpoint on, while they fit."""
    last = keep / "last.ckpt"
    begun = last.is_file()
    seed_everything(0, verbose=False)
    curve = Epochs(keep / "curve.json", left, most=1 if settings.quick else 0)
    saving = ModelCheckpoint(dirpath=keep, filename="best", save_last=True, save_top_k=0, enable_version_counter=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(
            settings,
            Path(folder),
            [saving, curve],
            max_epochs=2 if settings.quick else plan.epochs,
            limit_val_batches=0,
        )
        trainer.fit(
            plan.model(plan.epochs, settings.quick),
            datamodule=data,
            ckpt_path=last if begun else None,
            weights_only=True,
        )
    return {
        "went on from a checkpoint": begun,
        "of a run of": plan.epochs,
        "seconds an epoch": statistics.median([row["seconds"] for row in curve.curve]) if curve.curve else None,
        "curve": curve.curve,
    }
