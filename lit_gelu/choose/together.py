"""Candidates trained side by side, as a `ReplicaGroup` whose members are measured at the end of every epoch."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lit_gelu.choose.candidates import ActivationCandidate
from lit_gelu.choose.one_by_one import Setup, has_diverged, initial_weights, save_checkpoint, take_test
from lit_gelu.choose.run_files import RunFolder, TrainedRun, digest
from lit_gelu.data import InMemoryDataModule
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup

MOST = 24  # members of a group: more gain little on a CPU, and an interruption costs more
# What a group's Trainer takes as it is; the others ask for something that is meant for one run.
_TAKEN = frozenset({
    "max_epochs", "accelerator", "devices", "precision", "logger", "enable_checkpointing", "enable_progress_bar",
    "enable_model_summary", "log_every_n_steps", "default_root_dir", "num_sanity_val_steps", "deterministic",
    "limit_val_batches", "limit_test_batches",
})  # fmt: skip


def why_not_together(setup: Setup) -> str:
    """Return why runs cannot be a group, as far as it is known before; empty if nothing speaks against it."""
    if not isinstance(setup.data, InMemoryDataModule):
        return f"{type(setup.data).__name__} is no InMemoryDataModule, out of which a group takes its batches"
    for name, value in setup.trainer.items():
        is_default = name == "check_val_every_n_epoch" and value == 1
        if name not in _TAKEN and not is_default and value not in (None, [], ()):
            return f"Trainer({name}=...) is meant for a run of its own"
    return ""


class MemberNotes(Callback):
    """Notes at the end of every epoch what each member logs in validation."""

    def __init__(self, runs: Sequence[TrainedRun]) -> None:
        self.runs = list(runs)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for run, state in zip(self.runs, _group(pl_module).random_states, strict=True):
            run.orders.append(digest(state.torch))

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        measured = _group(pl_module).measured
        for replica, run in enumerate(self.runs if not trainer.sanity_checking else ()):
            run.add_epoch(trainer.current_epoch + 1, {name: float(of[replica]) for name, of in measured.items()})


def _group(module: LightningModule) -> ReplicaGroup:
    assert isinstance(module, ReplicaGroup)  # noqa: S101 - it is given to no other Trainer
    return module


def _save_member(group: ReplicaGroup, replica: int, path: Path) -> None:
    torch.save(group.member_checkpoint(replica), path)


def train_together(
    setup: Setup, wanted: Sequence[tuple[ActivationCandidate, int]], folder: RunFolder
) -> list[TrainedRun]:
    """Make runs as one group; what goes wrong in it is raised.

    Args:
        setup: What they have in common.
        wanted: Candidates, each with a seed.
        folder: Where their checkpoints go.

    Returns:
        The runs, in their order; they are kept in the folder.

    Raises:
        UnsupportedRunError: If they cannot be a group.
    """
    start = time.perf_counter()
    cells = [{"activation": candidate.given} for candidate, _ in wanted]
    group = ReplicaGroup.of(setup.build, cells, [seed for _, seed in wanted])
    runs = [TrainedRun(candidate.label, candidate.spec, seed, together=True) for candidate, seed in wanted]
    for run, member in zip(runs, group.members, strict=True):
        run.initial = initial_weights(member)
    trainer = setup.new_trainer(MemberNotes(runs))
    given = ReplicaDataModule(setup.data)  # type: ignore[arg-type] # `why_not_together` has looked
    trainer.fit(group, datamodule=given)
    for replica, (run, member) in enumerate(zip(runs, group.members, strict=True)):
        checkpoint = folder.checkpoint(run.label, run.spec, run.seed)
        save_checkpoint(checkpoint, partial(_save_member, group, replica), member)
        run.diverged = has_diverged(member)
        if setup.tests:
            take_test(setup, run, member)
        run.seconds = (time.perf_counter() - start) / len(runs)
        folder.keep(run)
    return runs
