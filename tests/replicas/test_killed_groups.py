"""Groups that are killed by SIGKILL at random moments and go on with the bits of the unbroken run."""

import os
import random
import shutil
import signal
import threading
import time

import pytest
import torch
from child_processes import run_forked
from lightning.pytorch import Callback
from measured_replicas import CELLS, SEEDS, Measuring, Sets
from replica_runs import same_content
from small_task import quiet_trainer
from torch.optim import lr_scheduler

from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import TweetTagger

EPOCHS = 5  # of six steps each, validated


def plateau(optimizer, module):
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


def tagger(**cell):
    return TweetTagger(vector_size=8, **cell)


TAGGERS = [{"activation": "relu", "keep": 0.8}, {"activation": "prelu"}, {"activation": "gelu", "keep": 0.5}]
BUILDS = {
    "own": (Measuring, [{**cell, "schedule": plateau} for cell in CELLS]),
    "task": (tagger, TAGGERS),
}


class Saving(Callback):
    """Saves the group behind each batch, each validation and each epoch, in one rename."""

    def __init__(self, path):
        self.path = path

    def save(self, trainer, *_):
        if not trainer.sanity_checking:
            trainer.save_checkpoint(self.path.with_suffix(".part"))
            self.path.with_suffix(".part").replace(self.path)

    on_train_batch_end = on_validation_end = on_train_epoch_end = save


class SavingEach(Saving):
    """The same, and keeps a copy of each file."""

    def __init__(self, path):
        super().__init__(path)
        self.copies = []

    def save(self, trainer, *_):
        if not trainer.sanity_checking:
            super().save(trainer)
            self.copies.append(shutil.copy(self.path, self.path.with_name(f"copy-{len(self.copies)}.ckpt")))

    on_train_batch_end = on_validation_end = on_train_epoch_end = save


def train(kind, folder, steps_per_batch, seconds=None):
    """Train to the end from the last checkpoint, if there is one, or until a signal after some seconds."""
    if seconds is not None:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    trained(kind, folder, steps_per_batch, EPOCHS, Saving(folder / "group.ckpt"))


def trained(kind, folder, steps_per_batch, epochs, saving):
    """Train to the end from the last checkpoint, if there is one, and keep what there is then."""
    build, cells = BUILDS[kind]
    path = folder / "group.ckpt"
    group = ReplicaGroup.of(build, cells, SEEDS, steps_per_batch=steps_per_batch)
    trainer = quiet_trainer(max_epochs=epochs, callbacks=[saving])
    given = {"ckpt_path": path, "weights_only": True} if path.exists() else {}
    trainer.fit(group, datamodule=ReplicaDataModule(Sets()), **given)
    members = [group.member_checkpoint(replica) for replica in range(len(cells))]
    kept = ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch")
    found = [{name: member[name] for name in kept} for member in members]
    torch.save([found, group.executor.streams.states(), group.measured], folder / "end.part")
    (folder / "end.part").replace(folder / "end.ckpt")


def end_of(folder):
    return torch.load(folder / "end.ckpt", weights_only=True)


@pytest.mark.forks
@pytest.mark.parametrize("kind", BUILDS)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=[pytest.mark.full, pytest.mark.timeout(3600)])])
def test_it_ends_with_the_bits_of_the_unbroken_run(kind, kills, tmp_path):
    unbroken, broken, chosen = tmp_path / "unbroken", 0, random.Random(0)
    unbroken.mkdir()
    begun = time.monotonic()
    assert run_forked(train, kind, unbroken, 4) == 0
    whole = time.monotonic() - begun
    for kill in range(kills):
        folder = tmp_path / str(kill)
        folder.mkdir()
        steps = chosen.choices([4, 3, 1, "auto"], k=2)
        code = run_forked(train, kind, folder, steps[0], whole * chosen.random())
        assert code in {0, -signal.SIGKILL}
        broken += code != 0
        had = (folder / "group.ckpt").exists()
        assert run_forked(train, kind, folder, steps[1]) == 0
        assert same_content(end_of(unbroken), end_of(folder)), f"kill {kill}, K {steps}, from a checkpoint: {had}"
    assert broken >= kills // 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", BUILDS)
def test_each_file_that_a_run_leaves_leads_to_the_same_bits(kind, tmp_path):
    """Random moments seldom hit the last hook of the last epoch."""
    saving = SavingEach(tmp_path / "group.ckpt")
    trained(kind, tmp_path, 3, 2, saving)
    assert len(saving.copies) == 8  # of two epochs: two batches, a validation and the end
    for number, copy in enumerate(saving.copies):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(copy, folder / "group.ckpt")
        trained(kind, folder, "auto", 2, Saving(folder / "group.ckpt"))
        assert same_content(end_of(tmp_path), end_of(folder)), f"copy {number}"
