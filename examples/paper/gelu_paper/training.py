"""`train`: one run, made by an ordinary Trainer with a callback that records its curves."""

import importlib
import inspect
import json
import logging
import math
import os
import platform
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from gelu_paper.cells import Cell
from gelu_paper.records import Curve, Robustness, RunRecord
from lit_gelu.errors import DataError
from lit_gelu.tasks import ActivationTask, noise_robustness

SAMPLES_AT_ONCE = 1000  # bounds the memory; without effect on the result but for rounding
PACKAGES = ("lit-gelu", "torch", "lightning", "numpy")
Samples = tuple[Tensor, Tensor]  # all inputs and labels of a set


@dataclass(frozen=True)
class RunOptions:
    """Where and on what runs are made: what is no part of their configuration."""

    root: str | None = None  # folder of the data; None leaves it to the data modules (LIT_GELU_DATA)
    accelerator: str = "cpu"  # the Trainer's
    threads: int = 1  # of each process: small nets are fastest with one


def train(cell: Cell, options: RunOptions) -> RunRecord:
    """Make one run.

    Args:
        cell: The run.
        options: Where and on what it is made.

    Returns:
        Its record.

    Raises:
        DataError: If its data are not there, or damaged.
    """
    _quieten()
    torch.set_num_threads(options.threads)
    # The data are read before the seed is set: whether they were in memory already has no influence on random numbers.
    started, clock = datetime.now(UTC), time.monotonic()
    module, sets = _loaded(json.dumps(cell.config["data"]), options.root)
    seed_everything(cell.seed, verbose=False)
    model = cast("ActivationTask", _class(cell.config["model"]["class_path"])(**cell.config["model"]["init_args"]))
    recorder = CurveRecorder(sets, cell.config["measurement"]["evaluations_per_epoch"])
    trainer = Trainer(
        **cell.config["trainer"],
        accelerator=options.accelerator,
        devices=1,
        callbacks=[recorder],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=module)
    seconds = time.monotonic() - clock
    device, robustness = trainer.strategy.root_device, None
    if cell.robustness_levels and not recorder.diverged:
        inputs, labels = sets["test"]
        model.to(device)  # a Trainer leaves it on the CPU
        noisy = noise_robustness(model, (inputs.to(model.dtype), labels), cell.robustness_levels, seed=cell.seed)
        robustness = Robustness(noisy.levels, noisy.error, noisy.loss)
    return RunRecord(
        key=cell.key,
        preset=cell.preset,
        experiment=cell.experiment,
        arm=cell.arm,
        activation=cell.activation,
        setting=dict(cell.setting),
        learning_rate=cell.learning_rate,
        seed=cell.seed,
        config=json.loads(json.dumps(cell.config)),
        versions={"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        machine={
            "system": platform.platform(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        started=started.isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        curves=recorder.curves,
        robustness=robustness,
        status="diverged" if recorder.diverged else "finished",
        data=_description(module),
    )


def prepare(data: Mapping[str, Any], requires: Mapping[str, str], root: str | None) -> None:
    """Make sure that data are there, and that what is computed of them once is on the disk.

    Args:
        data: ``class_path`` and ``init_args`` of the data module.
        requires: From a property of the data module, once prepared, to the value that the protocol needs.
        root: Folder of the data.

    Raises:
        DataError: If they are not there, or not what the protocol needs.
    """
    _quieten()
    module = _data_module(data, root)
    module.prepare_data()
    for name, value in requires.items():
        if (present := getattr(module, name)) != value:
            raise DataError(
                f"{type(module).__name__} has data whose {name} is {present!r}; this protocol needs {value!r}. Put "
                "those there, or run --preset quick, which takes what there is."
            )


class CurveRecorder(Callback):
    """Measures validation and test set several times an epoch, evenly spaced, the last time at the epoch's end.

    Training curves are means, over the steps since the measurement before, of what the task logs as train_loss and,
    where it does, train_error. Weights, buffers, modes, optimizer and random numbers are untouched: a run with this
    callback gives the same weights to the bit as one without. A training loss that is no finite number ends the run.
    """

    def __init__(self, sets: Mapping[str, Samples], evaluations: int) -> None:
        self.diverged = False
        self._sets = dict(sets)
        self._evaluations = evaluations
        self._steps: set[int] = set()
        self._logged: dict[str, list[Tensor]] = {}
        self._points: dict[str, list[tuple[float, float]]] = {}

    @property
    def curves(self) -> dict[str, Curve]:
        """What was measured, by name."""
        return {name: Curve(*zip(*points, strict=True)) for name, points in self._points.items()}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say after which steps of an epoch to measure, and have the sets near."""
        steps = int(trainer.num_training_batches)
        self._steps = {math.ceil(steps * number / self._evaluations) for number in range(1, self._evaluations + 1)}
        self._sets = {
            name: (trainer.precision_plugin.convert_input(inputs).to(pl_module.device), labels.to(pl_module.device))
            for name, (inputs, labels) in self._sets.items()
        }

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ARG002 - Lightning's signature
        batch: Any,  # noqa: ARG002 - Lightning's signature
        batch_idx: int,
    ) -> None:
        """Keep what the step logged, and measure if it is time."""
        for name in ("train_loss", "train_error"):
            if name in trainer.callback_metrics:
                # A copy on the device: asking for the number would make every step wait for a GPU.
                self._logged.setdefault(name, []).append(trainer.callback_metrics[name].detach().clone())
        if batch_idx + 1 not in self._steps:
            return
        values = {name: torch.stack(logged).cpu().double().mean().item() for name, logged in self._logged.items()}
        self._logged = {}
        self.diverged = not math.isfinite(values["train_loss"])
        with isolate_rng(), _evaluating(pl_module), trainer.precision_plugin.val_step_context():
            for stage, samples in self._sets.items():
                means = _means(cast("ActivationTask", pl_module), *samples)
                values |= {f"{stage}_{name}": value for name, value in means.items()}
        passed = trainer.current_epoch + (batch_idx + 1) / int(trainer.num_training_batches)
        for name, value in values.items():
            self._points.setdefault(name, []).append((passed, value))
        trainer.should_stop = trainer.should_stop or self.diverged


def _means(task: ActivationTask, inputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the means over a set, summed up in float64, of a task's `sample_values`: "loss", "error"."""
    columns: dict[str, list[Tensor]] = {}
    for batch in zip(torch.split(inputs, SAMPLES_AT_ONCE), torch.split(labels, SAMPLES_AT_ONCE), strict=True):
        for name, value in task.sample_values(*batch).items():
            columns.setdefault(name, []).append(value)
    return {name: torch.cat(values).cpu().double().mean().item() for name, values in columns.items()}


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation without gradients, and each of its parts back to the mode that it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


@lru_cache(maxsize=1)  # the next run of a grid mostly has the same data
def _loaded(data: str, root: str | None) -> tuple[LightningDataModule, dict[str, Samples]]:
    """Return a data module that has read its files, and its validation and test set, where it has one."""
    module = _data_module(json.loads(data), root)
    module.prepare_data()
    module.setup("fit")
    module.setup("test")
    batches = {"val": list(module.val_dataloader()), "test": list(module.test_dataloader())}
    return module, {
        name: (torch.cat([inputs for inputs, _ in pairs]), torch.cat([labels for _, labels in pairs]))
        for name, pairs in batches.items()
        if pairs
    }


def _data_module(data: Mapping[str, Any], root: str | None) -> LightningDataModule:
    """Build a data module, in a folder if it takes one."""
    kind = _class(data["class_path"])
    takes_root = root is not None and "root" in inspect.signature(kind).parameters
    return cast("LightningDataModule", kind(**data["init_args"], **({"root": root} if takes_root else {})))


def _description(module: LightningDataModule) -> dict[str, Any]:
    """Return what a data module says of its data, as JSON can hold it."""
    describe = getattr(module, "description", lambda: module.hparams)
    return {
        name: value if isinstance(value, str | int | float | bool | None) else str(value)
        for name, value in describe().items()
    }


def _class(path: str) -> type:
    module, _, name = path.rpartition(".")
    return cast("type", getattr(importlib.import_module(module), name))


def _quieten() -> None:
    """Turn off what Lightning says at each of hundreds of runs and what nobody could mend."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
