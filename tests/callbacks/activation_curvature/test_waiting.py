"""Measurements between two logging steps of the Trainer are never lost."""

import pytest
import torch
from callback_helpers import SmallNet, dataset, loader, quiet_trainer
from lightning.pytorch import Callback
from monitor_helpers import logged_rows, measured
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.callbacks import ActivationCurvatureMonitor

STEPS = 8  # of an epoch


def figures_by_step(folder):
    rows = [row for row in logged_rows(folder) if row["curvature/activations/interval"]]
    return {int(row["step"]): {key: float(value) for key, value in measured(row).items() if value} for row in rows}


def run(folder, monitor, *others, activation=nn.GELU, data=None, ckpt_path=None, **options):
    torch.manual_seed(3)
    model = SmallNet(activation, dropout=0.0)
    defaults = {"max_epochs": 2, "log_every_n_steps": 5}
    trainer = quiet_trainer(folder, monitor, *others, **(defaults | options))
    trainer.fit(model, data or loader(8 * STEPS, 8), ckpt_path=ckpt_path)
    return figures_by_step(folder)


class Failing(Callback):
    """Fails in the middle of the run."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 4:
            raise FloatingPointError("the loss is NaN")


def test_the_steps_before_a_failure_are_logged(tmp_path):
    with pytest.raises(FloatingPointError):
        run(tmp_path, Failing(), ActivationCurvatureMonitor(every_n_steps=1), log_every_n_steps=STEPS)
    assert list(figures_by_step(tmp_path)) == [0, 1, 2, 3]


class SaveAt(Callback):
    """Writes a checkpoint after a step."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_a_checkpoint_between_two_logging_steps_loses_and_repeats_nothing(tmp_path):
    batch = dataset(8).tensors
    data = DataLoader(TensorDataset(*(part.repeat(STEPS, *[1] * (part.dim() - 1)) for part in batch)), batch_size=8)

    def once(name, **options):
        monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=3, dead_unit_window=4)
        saver = SaveAt(tmp_path / f"{name}.ckpt", 3)
        return run(tmp_path / name, monitor, saver, activation=nn.ReLU, max_epochs=1, data=data, **options), monitor

    whole, first = once("whole")
    resumed, second = once("resumed", ckpt_path=tmp_path / "whole.ckpt")
    assert list(whole) == list(range(STEPS))
    assert resumed == {step: whole[step] for step in range(3, STEPS)}
    assert second.latest == first.latest
