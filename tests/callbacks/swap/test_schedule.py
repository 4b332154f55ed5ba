"""When a swap is due: at an epoch, at a step, or by a metric, of one rank or of several."""

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from callback_helpers import (
    SaveEverywhere,
    SmallNet,
    activations_of,
    collected_warnings,
    dataset,
    loader,
    quiet_trainer,
)
from lightning.pytorch.callbacks import EarlyStopping
from swap_runs import RELU_TO_GELU, STEPS_AN_EPOCH, Witness

from lit_gelu.callbacks import ActivationSwap, ExactResume
from lit_gelu.callbacks.swap import schedule as schedule_module
from lit_gelu.callbacks.swap.schedule import SwapSchedule
from lit_gelu.data import ResumableDataLoader
from lit_gelu.errors import ArgumentError, CheckpointError

MODULE = SimpleNamespace(device="cpu", automatic_optimization=True)
VALUES = [1.0, 0.9, 0.95, 0.9, 0.8, 0.8]


def trainer(**changes):
    facts = {"current_epoch": 0, "global_step": 0, "max_epochs": 4, "world_size": 1, "sanity_checking": False}
    return SimpleNamespace(**(facts | {"enable_validation": True, "callback_metrics": {"loss": 0.5}} | changes))


def checked(trigger, values):
    """Whether it has fired after each of some values."""
    fired = []
    for value in values:
        trigger.check(value)
        fired.append(trigger.fired)
    return fired


@pytest.mark.parametrize(
    "arguments",
    [
        *((None, None, None), (1, 1, None), (1, None, "loss"), (-1, None, None), (None, -1, None)),
        *((math.nan, None, None), (1.5, None, None), (True, None, None), (None, "3", None)),
    ],
)
def test_exactly_one_trigger_from_0_on(arguments):
    with pytest.raises(ArgumentError):
        SwapSchedule(*arguments)


@pytest.mark.parametrize("validation", [True, False])
def test_the_metric_is_looked_at_after_a_validation_or_else_at_the_epochs_end(validation):
    schedule = SwapSchedule(when="loss", reaches=0.5)
    schedule.look_at_metric(trainer(enable_validation=validation), MODULE, train_epoch_end=validation)
    schedule.look_at_metric(trainer(enable_validation=True, sanity_checking=True), MODULE, train_epoch_end=False)
    assert not schedule.is_due(trainer(current_epoch=9, global_step=9))
    schedule.look_at_metric(trainer(enable_validation=validation), MODULE, train_epoch_end=not validation)
    assert schedule.is_due(trainer())


def test_several_ranks_decide_by_their_mean_and_all_must_have_logged(monkeypatch):
    others = [0.7, 1.0, 1.0]
    monkeypatch.setattr(schedule_module, "sum_over_ranks", lambda mine: mine + mine.new_tensor(others))
    schedule = SwapSchedule(when="loss")
    schedule.look_at_metric(trainer(world_size=2), MODULE, train_epoch_end=False)
    assert schedule.best == pytest.approx(0.6, rel=1e-15)
    others[1] = 0.0
    with pytest.raises(ArgumentError):
        schedule.look_at_metric(trainer(world_size=2), MODULE, train_epoch_end=False)


@pytest.mark.parametrize(
    ("schedule", "changes", "warned"),
    [
        (SwapSchedule(4, None), {}, True),
        (SwapSchedule(3, None), {}, False),
        (SwapSchedule(9, None), {"max_epochs": -1}, False),
        (SwapSchedule(9, None), {"max_epochs": None}, False),
        (SwapSchedule(None, 10), {}, True),
        (SwapSchedule(None, 9), {}, False),
        (SwapSchedule(when="loss"), {}, False),
    ],
)
@pytest.mark.parametrize("kind", ["run", "trial", "manual"])
def test_a_run_that_ends_before_the_swap_is_warned_of(monkeypatch, schedule, changes, warned, kind):
    """Not in a trial; and how many steps a batch takes in manual optimization is not known."""
    monkeypatch.setattr(schedule_module, "is_trial_run", lambda trainer: kind == "trial")
    monkeypatch.setattr(schedule_module, "steps_of_run", lambda trainer: 10)
    module = SimpleNamespace(automatic_optimization=kind != "manual")
    silent = not warned or kind == "trial" or (kind == "manual" and schedule.at_step is not None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedule.warn_if_beyond_end(trainer(**changes), module, "the swap")
    assert len(caught) == (0 if silent else 1)


# --- The rule ---


@pytest.mark.parametrize("mode", ["min", "max"])
def test_stops_improving_as_early_stopping_counts(mode):
    values = torch.rand(60, generator=torch.Generator().manual_seed(1)).tolist()
    theirs = EarlyStopping("loss", patience=4, mode=mode, check_finite=False)
    stops = [theirs._evaluate_stopping_criteria(torch.tensor(value).double())[0] for value in values]
    first = stops.index(True)
    assert checked(SwapSchedule(when="loss", mode=mode, patience=4), values)[: first + 1] == stops[: first + 1]


def test_nan_is_no_improvement_and_a_first_nan_no_best():
    nan = math.nan
    assert checked(SwapSchedule(when="loss", patience=2), (nan, 1.0, nan, nan)) == [False] * 3 + [True]
    assert checked(SwapSchedule(when="loss", patience=3), [nan] * 4) == [False, False, True, True]


def test_reaches_a_value():
    assert checked(SwapSchedule(when="loss", mode="max", reaches=0.5), (0.4, 0.5, 0.1)) == [False, True, True]
    assert checked(SwapSchedule(when="loss", reaches=0.5), (0.6, math.nan, 0.5)) == [False, False, True]


def test_a_damaged_state_is_refused():
    for state in (None, [], {"best": 1.0}, {"best": "1", "waited": 0, "fired": False, "checked_at": 0}):
        with pytest.raises(CheckpointError):
            SwapSchedule(when="loss").load_state_dict(state)


# --- In a Trainer ---


class Scripted(SmallNet):
    """Logs validation losses that are known."""

    def __init__(self):
        super().__init__(dropout=0)

    def validation_step(self, batch, batch_idx):
        if batch_idx == 0:
            self.log("val_loss", torch.tensor(VALUES[self.trainer.global_step // STEPS_AN_EPOCH - 1]))


def fit(folder, model, *callbacks, ckpt_path=None):
    run = quiet_trainer(folder, *callbacks, max_epochs=6)
    with collected_warnings(""):  # loaders without workers
        training = ResumableDataLoader(dataset(), batch_size=8)
        run.fit(model, training, loader() if isinstance(model, Scripted) else None, ckpt_path=ckpt_path)


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        ({"patience": 2}, 4),  # best in epoch 1, not better in 2 and 3: from epoch 4 on
        ({"reaches": 0.85}, 5),
        ({"patience": 1, "mode": "max"}, 2),
    ],
)
def test_swaps_before_the_batch_after_the_metric_says_so(tmp_path, rule, first):
    seen = Witness()
    fit(tmp_path, Scripted(), ActivationSwap(RELU_TO_GELU, when="val_loss", **rule), seen)
    assert seen.names == ["ReLU"] * STEPS_AN_EPOCH * first + ["GELU"] * STEPS_AN_EPOCH * (6 - first)


def test_a_training_metric_at_the_end_of_the_epoch(tmp_path):
    class Training(SmallNet):
        def training_step(self, batch, batch_idx):
            self.log("loss_of_epoch", float(self.trainer.current_epoch), on_epoch=True, on_step=False)
            return super().training_step(batch, batch_idx)

    seen = Witness()
    fit(tmp_path, Training(), ActivationSwap(RELU_TO_GELU, when="loss_of_epoch", patience=2), seen)
    assert seen.names.count("ReLU") == 3 * STEPS_AN_EPOCH


@pytest.mark.parametrize("step", [6, 13])
def test_resumes_with_what_the_checks_have_come_to(tmp_path, step):
    rule = {"when": "val_loss", "patience": 2}
    fit(tmp_path, Scripted(), ActivationSwap(RELU_TO_GELU, **rule), ExactResume(), SaveEverywhere(tmp_path))
    resumed, swap = Scripted(), ActivationSwap(RELU_TO_GELU, **rule)
    fit(tmp_path / "b", resumed, swap, ExactResume(), ckpt_path=tmp_path / f"batch{step}.ckpt")
    assert swap.record.step == 16
    assert activations_of(resumed) == ["GELU", "GELU"]
