"""Runs that are killed by SIGKILL at a chosen point, resumed from their last checkpoint, and killed again."""

import itertools
import logging
import os
import random
import signal
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from callback_helpers import Drawing, dataset
from child_processes import run_forked
from fsspec.implementations.local import LocalFileOpener
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from small_task import quiet_trainer
from torch import nn
from torch.utils.data import DataLoader

from lit_gelu.callbacks import ActivationSwap, ExactResume
from lit_gelu.data import ResumableDataLoader

STEPS_AN_EPOCH = 8


class DrawingNet(Drawing):
    """ReLU, GELU, draws out of every generator, and a schedule that is as long as the run."""

    def __init__(self) -> None:
        super().__init__()
        self.net[5] = nn.GELU()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@dataclass(frozen=True)
class Kill:
    """Where a process ends itself: in the ``number``-th event (from 1) of a kind."""

    kind: str  # "batch", "forward", "save", "commit", "swap", "validation"
    number: int


class Killer(Callback):
    """Counts events and sends its own process SIGKILL at the chosen one."""

    def __init__(self, kill: Kill | None, notes: Path) -> None:
        self.kill, self.notes, self.seen = kill, notes, dict.fromkeys(("batch", "forward", "validation"), 0)

    def event(self, kind: str, number: int = 1) -> None:
        self.seen[kind] = self.seen.get(kind, 0) + number
        if self.kill is not None and (kind, self.seen[kind]) == (self.kill.kind, self.kill.number):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with self.notes.open("a") as file:
            print(trainer.global_step, file=file)  # where each process began
        pl_module.net[4].register_forward_hook(lambda *arguments: self.event("forward") if pl_module.training else None)

    def on_train_batch_start(self, *arguments: Any) -> None:
        self.event("batch")

    def on_validation_batch_start(self, *arguments: Any) -> None:
        self.event("validation")

    def on_activations_swapped(self, trainer: Trainer, pl_module: LightningModule, report: Any) -> None:
        if trainer.training:  # not when a checkpoint is loaded
            self.event("swap")

    def watch_files(self) -> None:
        """Let writing a checkpoint count: half of it written, and all of it but not yet in its place."""
        write, commit = LocalFileOpener.write, LocalFileOpener.commit

        def half(opener: Any, content: bytes) -> Any:
            write(opener, content[: len(content) // 2])
            opener.f.flush()
            self.event("save")
            return write(opener, content[len(content) // 2 :])

        def late(opener: Any) -> Any:
            self.event("commit")
            return commit(opener)

        LocalFileOpener.write, LocalFileOpener.commit = half, late


def run(folder: Path, epochs: int, kill: Kill | None, first_seed: int) -> None:
    """Start, or go on from the last checkpoint in a folder; leave the weights there if it comes to the end."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    tempfile.tempdir = str(folder)
    killer = Killer(kill, folder / "starts.txt")
    killer.watch_files()
    model = DrawingNet()  # which seeds torch
    # A process that resumes has drawn other numbers before: what counts is in the checkpoint.
    seed = first_seed if not list((folder / "saved").glob("*.ckpt")) else random.SystemRandom().randrange(2**32)
    for generator in (torch.manual_seed, random.seed, np.random.seed):
        generator(seed)
    swaps = [
        ActivationSwap({"activation:relu": "prelu"}, at_step=11),
        ActivationSwap({"activation:gelu": "swish(learnable=True)"}, at_step=18),
    ]
    saving = ModelCheckpoint(folder / "saved", filename="{step}", save_last=True, every_n_train_steps=3)
    callbacks = [*swaps, ExactResume(), killer, saving]
    trainer = quiet_trainer(max_epochs=epochs, callbacks=callbacks, enable_checkpointing=True)
    training = ResumableDataLoader(dataset(8 * STEPS_AN_EPOCH), batch_size=8, shuffle=True)
    trainer.fit(model, training, DataLoader(dataset(16, seed=1), batch_size=8), ckpt_path="last")
    optimizer = trainer.optimizers[0].state_dict()
    end = {"weights": model.state_dict(), "optimizer": optimizer, "random": torch.get_rng_state()}
    torch.save(end, folder / "end.pt")


def run_in_process(folder: Path, epochs: int, kill: Kill | None, first_seed: int = 0) -> int:
    """Call `run` in a forked process: nothing is imported again. Return its exit code, negative for a signal."""
    return run_forked(run, folder, epochs, kill, first_seed)


def ended(folder: Path) -> dict[str, Any]:
    """Return what a run that came to its end has left."""
    return torch.load(folder / "end.pt", weights_only=True)


def flat(state: Any) -> list[Any]:
    """Return all tensors and numbers of nested dictionaries and lists."""
    if isinstance(state, dict):
        return list(itertools.chain.from_iterable(flat(value) for value in state.values()))
    return list(itertools.chain.from_iterable(map(flat, state))) if isinstance(state, (list, tuple)) else [state]
