"""`SwapSchedule` alone, with a stand-in for the Trainer: bounds, metrics of several ranks, and its warnings."""

import math
import warnings
from types import SimpleNamespace

import pytest

from lit_gelu.callbacks.swap import schedule as schedule_module
from lit_gelu.callbacks.swap.schedule import MetricTrigger, SwapSchedule
from lit_gelu.errors import ArgumentError

MODULE = SimpleNamespace(device="cpu", automatic_optimization=True)


class Values(MetricTrigger):
    """Notes what it is given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def check(self, value):
        self.seen.append(value)


def trainer(**changes):
    facts = {"current_epoch": 0, "global_step": 0, "max_epochs": 4, "world_size": 1, "sanity_checking": False}
    facts |= {"num_training_batches": 3, "accumulate_grad_batches": 1}
    return SimpleNamespace(**(facts | {"enable_validation": True, "callback_metrics": {"loss": 0.5}} | changes))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, None, None), "one of at_epoch, at_step and when"),
        ((1, 1, None), "one of at_epoch, at_step and when"),
        ((1, None, "loss"), "one of at_epoch, at_step and when"),
        ((-1, None, None), "at_epoch=-1 .* counted from 0"),
        ((None, -1, None), "at_step=-1 .* counted from 0"),
        ((math.nan, None, None), "at_epoch=nan .* counted from 0"),
        ((1.5, None, None), "at_epoch=1.5 .* counted from 0"),
        ((True, None, None), "at_epoch=True .* counted from 0"),
        ((None, "3", None), "at_step='3' .* counted from 0"),
        ((None, None, 3), "when=3 .* name of a metric"),
        ((1, None, None, MetricTrigger(reaches=0.1)), "Give when= in the place of at_epoch=1"),
        ((None, 1, None, MetricTrigger(patience=7)), "Give when= in the place of at_epoch=None, at_step=1"),
    ],
)
def test_exactly_one_trigger_from_0_on(given, message):
    with pytest.raises(ArgumentError):
        SwapSchedule(*given)


def test_epochs_and_steps_are_due_from_their_number_on():
    by_epoch, by_step = SwapSchedule(2, None), SwapSchedule(None, 2)
    for number in range(4):
        assert by_epoch.is_due(trainer(current_epoch=number)) == (number >= 2)
        assert not by_epoch.is_due(trainer(current_epoch=1, global_step=number + 2))
        assert by_step.is_due(trainer(global_step=number)) == (number >= 2)
    assert SwapSchedule(0, None).is_due(trainer())
    assert SwapSchedule(None, 0).is_due(trainer())


def test_a_metric_is_due_when_it_has_fired():
    schedule = SwapSchedule(None, None, "loss", MetricTrigger(reaches=0.4))
    assert not schedule.is_due(trainer(current_epoch=9, global_step=9))
    schedule.look_at_metric(trainer(), MODULE, train_epoch_end=False)
    assert not schedule.is_due(trainer())
    schedule.look_at_metric(trainer(callback_metrics={"loss": 0.4}), MODULE, train_epoch_end=False)
    assert schedule.is_due(trainer())


@pytest.mark.parametrize(
    ("asked", "validation", "train_epoch_end", "looked"),
    [
        (None, True, False, True),
        (None, True, True, False),
        (None, False, True, True),
        (None, False, False, False),
        (True, True, True, True),
        (True, True, False, False),
        (False, False, False, True),
        (False, False, True, False),
    ],
)
def test_when_the_metric_is_looked_at(asked, validation, train_epoch_end, looked):
    schedule = SwapSchedule(None, None, "loss", Values(), asked)
    schedule.look_at_metric(trainer(enable_validation=validation), MODULE, train_epoch_end=train_epoch_end)
    assert schedule.metric.seen == ([0.5] if looked else [])


def test_not_in_a_sanity_check_and_not_without_a_metric():
    schedule = SwapSchedule(None, None, "loss", Values())
    schedule.look_at_metric(trainer(sanity_checking=True), MODULE, train_epoch_end=False)
    assert schedule.metric.seen == []
    schedule = SwapSchedule(1, None, None, Values())
    schedule.look_at_metric(trainer(), MODULE, train_epoch_end=False)
    assert schedule.metric.seen == []


def test_several_ranks_decide_by_their_mean_and_all_must_have_logged(monkeypatch):
    others = [0.7, 1.0, 1.0]
    monkeypatch.setattr(schedule_module, "sum_over_ranks", lambda mine: mine + mine.new_tensor(others))
    schedule = SwapSchedule(None, None, "loss", Values())
    schedule.look_at_metric(trainer(world_size=2), MODULE, train_epoch_end=False)
    assert schedule.metric.seen == [pytest.approx(0.6, rel=1e-15)]
    others[1] = 0.0
    with pytest.raises(ArgumentError):
        schedule.look_at_metric(trainer(world_size=2), MODULE, train_epoch_end=False)


@pytest.mark.parametrize(
    ("schedule", "changes", "warned"),
    [
        (SwapSchedule(4, None), {}, "epochs"),
        (SwapSchedule(3, None), {}, ""),
        (SwapSchedule(9, None), {"max_epochs": -1}, "steps"),
        (SwapSchedule(9, None), {"max_epochs": None}, "steps"),
        (SwapSchedule(4, None), {"max_epochs": 1000}, "steps"),
        (SwapSchedule(2, None), {"num_training_batches": math.inf}, ""),  # an epoch may be short
        (SwapSchedule(None, 10), {}, "steps"),
        (SwapSchedule(None, 9), {}, ""),
        (SwapSchedule(None, None, "loss"), {}, ""),
    ],
)
@pytest.mark.parametrize("kind", ["run", "trial", "manual"])
def test_a_run_that_ends_before_the_swap_is_warned_of(monkeypatch, schedule, changes, warned, kind):
    """Not in a trial; and how many steps a batch takes in manual optimization is not known."""
    monkeypatch.setattr(schedule_module, "is_trial_run", lambda trainer: kind == "trial")
    monkeypatch.setattr(schedule_module, "steps_of_run", lambda trainer: 10)
    module = SimpleNamespace(automatic_optimization=kind != "manual")
    silent = not warned or kind == "trial" or (kind == "manual" and warned == "steps")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedule.warn_if_beyond_end(trainer(**changes), module, "the swap")
    assert len(caught) == (0 if silent else 1)
