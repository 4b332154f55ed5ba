"""Swaps by a metric."""

import math

import pytest
import torch
from callback_helpers import SmallNet, activations_of, collected_warnings, dataset, loader, quiet_trainer
from lightning.pytorch import Callback

from lit_gelu.callbacks import (
    ActivationSwap,
    ExactResume,
)
from lit_gelu.callbacks.swap.schedule import MetricTrigger
from lit_gelu.data import ResumableDataLoader
from lit_gelu.errors import ArgumentError

RELU_TO_GELU = {"activation:relu": "gelu"}
STEPS_AN_EPOCH = 4


class Scripted(SmallNet):
    """Logs the validation losses that a test gives, one a validation."""

    def __init__(self, values, name="val_loss"):
        super().__init__(dropout=0)
        self.values, self.name = values, name

    def validation_step(self, batch, batch_idx):
        if batch_idx == 0:
            self.log(self.name, torch.tensor(self.values[self.trainer.global_step // STEPS_AN_EPOCH - 1]))


class Seen(Callback):
    """The activation that each step is made with."""

    def __init__(self):
        self.names = []

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        self.names.append(activations_of(pl_module)[0])


class SaveEveryStep(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, pl_module, *arguments):
        trainer.save_checkpoint(self.folder / f"step{trainer.global_step}.ckpt")


def fit(folder, model, *callbacks, ckpt_path=None, **options):
    trainer = quiet_trainer(folder, *callbacks, **({"max_epochs": 6} | options))
    with collected_warnings(""):  # loaders without workers
        training = ResumableDataLoader(dataset(), batch_size=8)
        trainer.fit(model, training, loader() if hasattr(model, "values") else None, ckpt_path=ckpt_path)
    return trainer


# --- The rule ---


def test_stops_improving_as_early_stopping_counts():
    from lightning.pytorch.callbacks import EarlyStopping

    values = torch.rand(60, generator=torch.Generator().manual_seed(1)).tolist()
    for mode in ("min", "max"):
        ours = MetricTrigger(mode, patience=4, threshold=0.05)
        theirs = EarlyStopping("loss", min_delta=0.05, patience=4, mode=mode, check_finite=False)
        for value in values:
            stop, _ = theirs._evaluate_stopping_criteria(torch.tensor(value, dtype=torch.float64))
            assert ours.check(value) == stop
            if stop:
                break
        assert stop


def test_nan_is_no_improvement_and_a_first_nan_no_best():
    trigger = MetricTrigger(patience=2)
    assert [trigger.check(value) for value in (float("nan"), 1.0, float("nan"), float("nan"))] == [False] * 3 + [True]


def test_reaches_a_value():
    rising, falling = MetricTrigger("max", reaches=0.5), MetricTrigger("min", reaches=0.5)
    assert [rising.check(value) for value in (0.4, 0.5, 0.1)] == [False, True, True]
    assert [falling.check(value) for value in (0.6, float("nan"), 0.5)] == [False, False, True]


# --- In a Trainer ---


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        ({"patience": 2}, 4),  # best in epoch 1, not better in 2 and 3: from epoch 4 on
        ({"patience": 1, "threshold": 0.3}, 2),
        ({"reaches": 0.85}, 5),
        ({"patience": 1, "mode": "max"}, 2),
    ],
)
def test_swaps_before_the_batch_after_the_metric_says_so(tmp_path, rule, first):
    model, seen = Scripted([1.0, 0.9, 0.95, 0.9, 0.8, 0.8]), Seen()
    fit(tmp_path, model, ActivationSwap(RELU_TO_GELU, when="val_loss", **rule), seen)
    assert seen.names == ["ReLU"] * STEPS_AN_EPOCH * first + ["GELU"] * STEPS_AN_EPOCH * (6 - first)


def test_a_training_metric_at_the_end_of_the_epoch(tmp_path):
    class Training(SmallNet):
        def training_step(self, batch, batch_idx):
            self.log("loss_of_epoch", float(self.trainer.current_epoch), on_epoch=True, on_step=False)
            return super().training_step(batch, batch_idx)

    seen = Seen()
    fit(tmp_path, Training(), ActivationSwap(RELU_TO_GELU, when="loss_of_epoch", patience=2), seen)
    assert seen.names.count("ReLU") == 3 * STEPS_AN_EPOCH


def test_a_metric_that_is_not_logged_is_named(tmp_path):
    with pytest.raises(ArgumentError):
        fit(tmp_path, Scripted([1.0] * 6), ActivationSwap(RELU_TO_GELU, when="val_los"))


@pytest.mark.parametrize("step", [6, 11, 13, 17])
def test_resumes_with_what_the_checks_have_come_to(tmp_path, step):
    values = [1.0, 0.9, 0.95, 0.9, 0.8, 0.8]
    whole, swap = Scripted(values), {"when": "val_loss", "patience": 2}
    fit(tmp_path, whole, ActivationSwap(RELU_TO_GELU, **swap), ExactResume(), SaveEveryStep(tmp_path))
    resumed = Scripted(values)
    resumed_swap = ActivationSwap(RELU_TO_GELU, **swap)
    fit(tmp_path / "b", resumed, resumed_swap, ExactResume(), ckpt_path=tmp_path / f"step{step}.ckpt")
    assert resumed_swap.record.step == 16
    assert activations_of(resumed) == ["GELU", "GELU"]


def test_a_metric_that_is_never_a_number_does_not_improve():
    trigger = MetricTrigger(patience=3)
    assert [trigger.check(math.nan) for _ in range(4)] == [False, False, True, True]
