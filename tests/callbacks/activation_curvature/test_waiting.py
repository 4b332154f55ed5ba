"""Measurements between two logging steps of the Trainer: their rows wait, are summed together, and are never lost."""

import pytest
import torch
from callback_helpers import SmallNet, dataset, loader, quiet_trainer
from lightning.pytorch import Callback
from monitor_helpers import logged_rows, measured
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.callbacks import ActivationCurvatureMonitor
from lit_gelu.curvature import activation_measurement
from lit_gelu.curvature.activation_measurement import ActivationMeasurement

STEPS = 8  # of an epoch


class Sums(Callback):
    """Notes, at the end of each step, how many measurements were summed in it."""

    def __init__(self, monkeypatch):
        self.groups, self._now = [], []
        plain = ActivationMeasurement.reduce

        def counted(measurement, recordings, device):
            self._now.append(len(recordings))
            return plain(measurement, recordings, device)

        monkeypatch.setattr(ActivationMeasurement, "reduce", counted)

    def on_train_batch_end(self, *_):
        self.groups.append(sum(self._now))
        self._now.clear()


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


def test_they_are_summed_at_the_steps_at_which_the_trainer_logs(tmp_path, monkeypatch):
    """The first measurement gives the others their reference; what waits at the end of an epoch is summed there."""
    sums = Sums(monkeypatch)
    rows = run(tmp_path, ActivationCurvatureMonitor(every_n_steps=1), sums)
    assert sums.groups[:8] == [1, 0, 0, 0, 4, 0, 0, 0]
    assert sums.groups[8:] == [3, 2, 0, 0, 0, 0, 5, 0]  # the three of before, at the end of the epoch
    assert list(rows) == list(range(16))
    assert all(row["curvature/activations/interval"] == 1 for row in rows.values())


@pytest.mark.parametrize("activation", [nn.GELU, nn.Hardswish])
def test_figures_do_not_depend_on_the_wait(tmp_path, activation):
    """But for the width of the windows about kinks: it is taken from the last measurement that was summed."""
    rows = [
        run(
            tmp_path / str(every),
            ActivationCurvatureMonitor(every_n_steps=1, sample_rows=6, dead_unit_window=3, gaussian=True),
            activation=activation,
            log_every_n_steps=every,
        )
        for every in (1, 5, 0)
    ]
    assert list(rows[0]) == list(range(16))
    assert any(key.endswith("share_dead") for key in rows[0][3])
    for others in rows[1:]:
        assert others.keys() == rows[0].keys()
        for step, row in rows[0].items():
            smooth = {key: value for key, value in row.items() if not key.endswith("kink_mass") or "gaussian" in key}
            assert {key: others[step][key] for key in smooth} == pytest.approx(smooth, rel=1e-9, abs=1e-12)
            kinks = {key: value for key, value in row.items() if key not in smooth}
            assert {key: others[step][key] for key in kinks} == pytest.approx(kinks, rel=0.3, abs=0.05)


def test_no_more_waits_than_the_limits_say(tmp_path, monkeypatch):
    sums = Sums(monkeypatch)
    monkeypatch.setattr(activation_measurement, "MOST_WAITING", 2)
    run(tmp_path / "number", ActivationCurvatureMonitor(every_n_steps=1), sums, max_epochs=1, log_every_n_steps=0)
    assert sums.groups == [1, 0, 0, 3, 0, 0, 3, 0]
    monkeypatch.setattr(activation_measurement, "WAITING_BYTES", 100)
    sums.groups.clear()
    run(tmp_path / "bytes", ActivationCurvatureMonitor(every_n_steps=1), sums, max_epochs=1, log_every_n_steps=0)
    assert sums.groups[1:] == [1] * (STEPS - 1)


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
def test_a_checkpoint_in_the_middle_of_a_wait_loses_and_repeats_nothing(tmp_path):
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
