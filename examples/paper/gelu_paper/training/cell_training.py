"""Training one cell: an ordinary Trainer with a callback that records curves."""

import importlib
import inspect
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any, cast

import torch
from lightning.pytorch import LightningDataModule, Trainer, seed_everything
from torch import Tensor, nn

from lit_gelu.data.in_memory import description_of
from gelu_paper.errors import PaperArgumentError
from gelu_paper.jobs import Progress, RunOptions
from gelu_paper.protocol.cells import Cell, data_name
from gelu_paper.records.run_record import Curve, Robustness, RunRecord, result_of
from gelu_paper.training.curve_recorder import CurveRecorder, EvaluationSet
from gelu_paper.training.run_checkpoint import keep_checkpoint
from lit_gelu.tasks import ActivationTask
from lit_gelu.tasks.noise_robustness import noise_robustness_of_each

PACKAGES = ("lit-gelu", "torch", "lightning", "numpy")


class LoadedData:
    """A data module that has read its files, and its validation and test set."""

    def __init__(self, config: Mapping[str, Any], root: str | None) -> None:
        self.module = build_data(config, root)
        self.module.prepare_data()
        self.module.setup("fit")
        self.module.setup("test")
        loaders = {"val": self.module.val_dataloader(), "test": self.module.test_dataloader()}
        gathered = {name: EvaluationSet.of(loader) for name, loader in loaders.items()}
        self.sets = {name: samples for name, samples in gathered.items() if samples is not None}


class DataCache:
    """Keeps the data of the run before: the next one of a grid mostly has the same."""

    def __init__(self, root: str | None) -> None:
        self._root = root
        self._loaded: tuple[str, LoadedData] | None = None

    def get(self, config: Mapping[str, Any]) -> LoadedData:
        """Return loaded data, read if the ones before were others."""
        name = data_name(config)
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None  # so that both are never in memory
            self._loaded = (name, LoadedData(config, self._root))
        return self._loaded[1]


def train(cell: Cell, data: DataCache, options: RunOptions, report: Callable[[Progress], None]) -> RunRecord:
    """Make one run; ``report`` is called with how far it is."""
    # The data are read before the seed is set: whether they were in memory already has no influence on random numbers.
    started, clock = datetime.now(UTC), time.monotonic()
    loaded = data.get(cell.config["data"])
    seed_everything(cell.seed, verbose=False)
    model = cast("ActivationTask", build(cell.config["model"]))
    recorder = CurveRecorder(loaded.sets, cell.config["measurement"]["evaluations_per_epoch"], report)
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
    trainer.fit(model, datamodule=loaded.module)
    keep_checkpoint(options.checkpoints, cell, trainer.save_checkpoint, report)
    seconds = time.monotonic() - clock
    with back_on(trainer.strategy.root_device, model):
        (robustness,) = robustness_of([cell], [None if recorder.diverged else model], loaded)
    return record_of(
        cell,
        loaded,
        recorder.curves,
        robustness,
        is_diverged=recorder.diverged,
        device=trainer.strategy.root_device,
        started=started,
        seconds=seconds,
    )


@contextmanager
def back_on(device: torch.device, module: nn.Module) -> Iterator[None]:
    """Have a module back on the device that it was trained on: a Trainer leaves it on the CPU, and so does this."""
    if device.type == "cpu":
        yield
        return
    module.to(device)
    try:
        yield
    finally:
        module.cpu()


def record_of(
    cell: Cell,
    loaded: LoadedData,
    curves: Mapping[str, Curve],
    robustness: Robustness | None,
    *,
    is_diverged: bool,
    device: torch.device,
    started: datetime,
    seconds: float,
    group: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Return the record of a run that was made."""
    return RunRecord(
        key=cell.key,
        preset=cell.preset,
        experiment=cell.experiment,
        arm=cell.arm,
        activation=cell.activation,
        setting=dict(cell.setting),
        learning_rate=cell.learning_rate,
        seed=cell.seed,
        config=dict(cell.config),
        versions=versions(),
        machine=machine(device),
        started=started.isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        curves=dict(curves),
        result=result_of(curves),
        robustness=robustness,
        status="diverged" if is_diverged else "finished",
        data={name: _plain(value) for name, value in description_of(loaded.module).items()},
        group=None if group is None else dict(group),
    )


def _plain(value: Any) -> Any:
    """Return a hyper-parameter as JSON can hold it."""
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def build(config: Mapping[str, Any]) -> Any:
    """Build what a configuration describes."""
    return import_class(config["class_path"])(**config["init_args"])


def build_data(config: Mapping[str, Any], root: str | None) -> LightningDataModule:
    """Build a data module, in a folder if it takes one; ``None`` leaves it to the module."""
    kind = import_class(config["class_path"])
    takes_root = root is not None and "root" in inspect.signature(kind).parameters
    module: LightningDataModule = kind(**config["init_args"], **({"root": root} if takes_root else {}))
    return module


def import_class(class_path: str) -> type:
    """Return the class that a path names."""
    module, _, name = class_path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None) if module else None
    if not isinstance(found, type):
        raise PaperArgumentError(f"There is no class {class_path!r}. Give module and class with dots.")
    return found


@cache  # reading what is installed takes 7 ms, once for each run of a group
def _installed() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


def versions() -> dict[str, str]:
    """Return the versions of what takes part in a run."""
    return {"python": platform.python_version(), **_installed()}


def machine(device: torch.device) -> dict[str, Any]:
    """Return what a run was made on; nothing that names the machine."""
    return {
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def robustness_of(
    cells: Sequence[Cell],
    nets: Sequence[ActivationTask | None],
    loaded: LoadedData,
    outputs_of: Callable[[Sequence[int]], Callable[[Tensor], Tensor] | None] = lambda _: None,
) -> list[Robustness | None]:
    """Measure nets under noise, but those that are ``None`` or whose cells ask for no levels.

    Args:
        cells: Those of the runs.
        nets: What the runs have trained.
        loaded: Their data.
        outputs_of: Returns for places of nets what gives the outputs of these at once, if there is that.

    Returns:
        What was measured of each.
    """
    # The noise depends on the run's seed, and is the same for all arms: nets of one seed are measured together.
    together: dict[Any, list[int]] = {}
    for place, (cell, net) in enumerate(zip(cells, nets, strict=True)):
        if net is not None and cell.robustness_levels:
            together.setdefault((cell.seed, cell.robustness_levels, net.dtype), []).append(place)
    test, found = loaded.sets["test"], dict.fromkeys(range(len(cells)))
    for (seed, levels, dtype), places in together.items():
        samples = test.inputs.to(dtype), test.labels
        own = [net for place in places if (net := nets[place]) is not None]
        measured = noise_robustness_of_each(own, samples, levels, seed=seed, together=outputs_of(places))
        for place, curves in zip(places, measured, strict=True):
            found[place] = Robustness(curves.levels, curves.error, curves.loss)
    return list(found.values())
