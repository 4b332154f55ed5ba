"""The runs of a comparison: each an ordinary fit, or several as one group; finished ones are kept in a folder."""

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.nn.parameter import is_lazy

from lit_gelu.choose.result import SCHEMA, TrainedRun
from lit_gelu.errors import ArgumentError, LitGeluError, shown
from lit_gelu.files import is_file, write_atomically
from lit_gelu.random_states import seeded
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup

Build = Callable[..., LightningModule]

log = logging.getLogger("lit_gelu.choose")  # whatever is finished is said there at level INFO

QUIET = {
    "devices": 1,  # a run that is shared by several is another one
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
MOST_TOGETHER = 24  # members of a group: more gain little on a CPU, and an interruption costs more
# What the Trainer of a group takes as it is; the others ask for something that is meant for one run.
_OF_GROUPS = frozenset({
    "max_epochs", "accelerator", "devices", "precision", "logger", "log_every_n_steps", "default_root_dir",
    "num_sanity_val_steps", "deterministic", "limit_val_batches", "limit_test_batches",
    "enable_checkpointing", "enable_progress_bar", "enable_model_summary",
})  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """One of the activations that are compared."""

    label: str  # its name in tables; by default the activation itself, where that is text
    activation: Any  # what the module is built with
    spec: str  # the same in canonical form, as text; equal for two names of one activation


Cell = tuple[Candidate, int]  # with a seed


@dataclass(frozen=True)
class Setup:
    """What all runs have in common."""

    build: Build
    data: LightningDataModule
    options: Mapping[str, Any]  # of their Trainers
    tests: bool = False  # whether a test follows the last epoch

    def new_trainer(self, *callbacks: Callback, **options: Any) -> Trainer:
        """Return a Trainer with copies of the callbacks that were given, and these."""
        both = {**QUIET, **self.options, **options}
        return Trainer(**both | {"callbacks": [*deepcopy(both.get("callbacks") or []), *callbacks]})

    def new_data(self) -> Any:
        """Return a copy of the data, whose own generators are then as every run finds them."""
        return deepcopy(self.data, {id(self.data.trainer): None})


def train_alone(setup: Setup, candidate: Candidate, seed: int, checkpoint: Path) -> TrainedRun:
    """Make a run; whatever goes wrong in it is noted, and does not go further."""
    run, start = TrainedRun(candidate.label, candidate.spec, seed), time.perf_counter()
    try:
        with seeded(seed):
            module, data, trainer = setup.build(activation=candidate.activation), setup.new_data(), setup.new_trainer()
            trainer.fit(module, datamodule=data)
            # Once more: not every epoch is validated, and a callback may put averages in behind the last one.
            run.val = validated(trainer, module, data)
            _finish(setup, run, module, data, checkpoint)
    except Exception as error:  # noqa: BLE001 - of a user's module; the others are to be compared all the same
        run.failure = first_line(error)
    run.seconds = time.perf_counter() - start
    return run


def validated(trainer: Trainer, module: LightningModule, data: Any) -> dict[str, float]:
    """Return what a module logs in a validation behind a fit, by name; nothing where the fit has none."""
    if not (loaders := trainer.val_dataloaders):
        return {}
    # With the fit's loaders: `Trainer.validate` calls ``setup``, which may split in another way.
    fitted = copy(data)
    fitted.prepare_data = fitted.setup = fitted.teardown = lambda *_, **__: None
    fitted.val_dataloader = lambda: loaders
    trainer.validate(module, datamodule=fitted, verbose=False)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def train_together(setup: Setup, cells: Sequence[Cell], checkpoints: Sequence[Path]) -> list[TrainedRun]:
    """Make runs as one group; what goes wrong in it is raised."""
    start = time.perf_counter()
    activations = [{"activation": candidate.activation} for candidate, _ in cells]
    group = ReplicaGroup.of(setup.build, activations, seeds=[seed for _, seed in cells])
    runs = [TrainedRun(candidate.label, candidate.spec, seed) for candidate, seed in cells]
    data = setup.new_data()
    setup.new_trainer().fit(group, datamodule=ReplicaDataModule(data))
    for number, (run, member, checkpoint) in enumerate(zip(runs, group.members, checkpoints, strict=True)):
        run.val = {name: float(values[number]) for name, values in group.measured.items()}
        _finish(setup, run, member, data, checkpoint)
        run.seconds = (time.perf_counter() - start) / len(runs)
    return runs


def _finish(setup: Setup, run: TrainedRun, module: LightningModule, data: Any, checkpoint: Path) -> None:
    trained = [parameter for parameter in module.parameters() if not is_lazy(parameter)]
    run.diverged = not all(bool(parameter.isfinite().all()) for parameter in trained)
    trainer = setup.new_trainer(callbacks=None)
    if setup.tests:
        (values,) = trainer.test(module, datamodule=data, verbose=False)
        run.test = {name: float(value) for name, value in values.items()}
    trainer.strategy.connect(module)
    try:
        with write_atomically(checkpoint) as temporary:
            trainer.save_checkpoint(temporary, weights_only=True)
    except LitGeluError:  # of an activation that cannot be named in a checkpoint
        with write_atomically(checkpoint) as temporary:
            torch.save({"state_dict": module.state_dict()}, temporary)


def first_line(error: BaseException) -> str:
    """Return an error in one line, without the stop at its end."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}".rstrip(".") if lines else type(error).__name__


class RunFolder:
    """Finished runs on disk: a JSON line each in ``runs.jsonl``, and the weights as ordinary checkpoints."""

    # The first line says what all runs have in common; runs with other settings are refused. Beyond that the folder is
    # trusted.

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self.path = folder, folder / "runs.jsonl"
        header = {"schema": SCHEMA, "settings": settings}
        self.lines = self.path.read_text(encoding="utf-8").splitlines() if is_file(self.path) else [json.dumps(header)]
        try:
            kept, *runs = map(json.loads, self.lines)
            self.runs = {(run.label, run.spec, run.seed): run for run in (TrainedRun(**run) for run in runs)}
        except (TypeError, ValueError):
            kept = None
        if kept != json.loads(json.dumps(header)):
            there = kept["settings"] if isinstance(kept, dict) and "settings" in kept else {}
            pairs = [f"{n}: {shown(there.get(n))}, now {shown(v)}" for n, v in settings.items() if there.get(n) != v]
            raise ArgumentError(
                f"folder={str(folder)!r} holds runs with other settings ({'; '.join(pairs)}). Runs that differ in more "
                "than activation and seed are not compared. Give another folder (--output)."
            )

    def find(self, candidate: Candidate, seed: int) -> TrainedRun | None:
        """Return a run that is kept, if its weights are there too."""
        run = self.runs.get((candidate.label, candidate.spec, seed))
        return run if run is not None and is_file(self.checkpoint(candidate, seed)) else None

    def keep(self, run: TrainedRun) -> None:
        """Write a run down; its checkpoint is there already."""
        self.lines.append(json.dumps(asdict(run)))
        self.runs[run.label, run.spec, run.seed] = run
        with write_atomically(self.path) as temporary:
            temporary.write_text("\n".join(self.lines) + "\n", encoding="utf-8")

    def checkpoint(self, candidate: Candidate, seed: int) -> Path:
        """Return where the weights of a run are."""
        # Labels are any text: what cannot be in a file's name is told apart by the digest.
        plain = re.sub(r"[^A-Za-z0-9]+", "_", candidate.label).strip("_")[:40]
        digest = hashlib.sha256(f"{candidate.label} {candidate.spec}".encode()).hexdigest()[:8]
        return self.folder / "runs" / f"{plain}-{digest}-{seed}.ckpt"


def settings_text(value: Any) -> Any:
    """Return what was given as plain data for the folder's first line: objects by their type, functions by name."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(name): settings_text(entry) for name, entry in value.items()}
        case list() | tuple():
            return [settings_text(entry) for entry in value]
        case partial():
            return [settings_text(part) for part in (value.func, value.args, value.keywords)]
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def settings_of(build: Build, swap: Any, setup: Setup) -> dict[str, Any]:
    """Return what all runs of a comparison have in common."""
    plain = {n: v for n, v in vars(setup.data).items() if isinstance(v, bool | int | float | str) and n[0] != "_"}
    return {
        "build": settings_text(build),
        "swap": settings_text(swap),
        "data": settings_text(type(setup.data)),
        "data_arguments": settings_text({**plain, **setup.data.hparams}),
        "trainer": settings_text(setup.options),
    }


def make_runs(
    setup: Setup, folder: RunFolder, cells: Sequence[Cell], *, together: bool, tests_of: str
) -> tuple[dict[tuple[str, int], TrainedRun], str]:
    """Make the runs that are not in the folder yet; return all by label and seed, and how they were trained."""
    # A finished run must have the figure ``tests_of`` of a test, if one is named.
    kept = {(c.label, seed): folder.find(c, seed) for c, seed in cells}
    runs = {key: run for key, run in kept.items() if run is not None and (not tests_of or tests_of in run.test)}
    missing = [(c, seed) for c, seed in cells if (c.label, seed) not in runs]
    if not missing:
        return runs, "Nothing was trained: all runs were there."
    alone = "" if together else "together=False was given"
    for name, value in setup.options.items():
        is_default = name == "check_val_every_n_epoch" and value == 1
        if name not in _OF_GROUPS and not is_default and value not in (None, [], ()):
            alone = alone or f"Trainer({name}=...) is meant for a run of its own"
    while missing and not alone:
        part = missing[:MOST_TOGETHER]
        try:
            trained = train_together(setup, part, [folder.checkpoint(*cell) for cell in part])
        except Exception as error:  # noqa: BLE001 - whatever a group cannot do, single runs may
            alone = f"as a group they cannot be trained ({first_line(error)})"
            log.info("one after another: %s", alone)
            break
        for run in trained:
            folder.keep(run)
            runs[run.label, run.seed] = run
        log.info("trained %d runs side by side in %.1f s", len(trained), sum(run.seconds for run in trained))
        del missing[: len(part)]
    for candidate, seed in missing:
        run = train_alone(setup, candidate, seed, folder.checkpoint(candidate, seed))
        log.info("%s, seed %d: %s", candidate.label, seed, run.failure or f"trained in {run.seconds:.1f} s")
        if not run.failure:
            folder.keep(run)
        runs[run.label, run.seed] = run
    return runs, f"Trained one after another: {alone}." if alone else "Trained side by side, as a group."
