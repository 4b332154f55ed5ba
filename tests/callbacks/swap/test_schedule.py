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


def test_descriptions_tell_schedules_apart():
    assert SwapSchedule(2, None).describe() == {"at_epoch": 2, "at_step": None}
    assert SwapSchedule(None, 3).describe() == {"at_epoch": None, "at_step": 3}
    reaches = MetricTrigger(mode="max", reaches=0.9)
    assert SwapSchedule(None, None, "acc", reaches).describe() == {"when": "acc", "mode": "max", "reaches": 0.9}
    stalls = MetricTrigger(patience=7, threshold=0.01)
    wanted = {"when": "loss", "mode": "min", "patience": 7, "threshold": 0.01}
    assert SwapSchedule(None, None, "loss", stalls).describe() == wanted


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


def test_a_metric_that_was_not_logged_is_named_with_those_that_were():
    schedule = SwapSchedule(None, None, "error", Values())
    with pytest.raises(ArgumentError):
        schedule.look_at_metric(trainer(), MODULE, train_epoch_end=False)


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
    ("schedule", "changes", "anneal_steps", "said"),
    [
        (SwapSchedule(4, None), {}, 0, "not be made: this run ends after 4 epochs"),
        (SwapSchedule(3, None), {}, 0, None),
        (SwapSchedule(9, None), {"max_epochs": -1}, 0, "not be made: this run ends after 10 steps"),
        (SwapSchedule(9, None), {"max_epochs": None}, 0, "not be made: this run ends after 10 steps"),
        (SwapSchedule(4, None), {"max_epochs": 1000}, 0, "not be made: this run ends after 10 steps"),
        (SwapSchedule(2, None), {}, 4, None),
        (SwapSchedule(2, None), {}, 5, "left halfway: this run ends after 10 steps"),
        (
            SwapSchedule(2, None),
            {"num_training_batches": 7, "accumulate_grad_batches": 2},
            3,
            "left halfway: this run ends after 10 steps",
        ),
        (SwapSchedule(2, None), {"num_training_batches": math.inf}, 0, None),  # an epoch may be short
        (SwapSchedule(0, None), {"num_training_batches": math.inf}, 10, None),
        (SwapSchedule(0, None), {"num_training_batches": math.inf}, 11, "left halfway: this run ends after 10 steps"),
        (SwapSchedule(None, 10), {}, 0, "not be made: this run ends after 10 steps"),
        (SwapSchedule(None, 9), {}, 0, None),
        (SwapSchedule(None, 7), {}, 3, None),
        (SwapSchedule(None, 8), {}, 3, "left halfway: this run ends after 10 steps"),
        (SwapSchedule(None, None, "loss"), {}, 99, None),
    ],
)
@pytest.mark.parametrize("kind", ["run", "trial", "manual"])
def test_a_run_that_ends_before_the_swap_is_warned_of(monkeypatch, schedule, changes, anneal_steps, said, kind):
    """Not in a trial; and how many steps a batch takes in manual optimization is not known."""
    monkeypatch.setattr(schedule_module, "is_trial_run", lambda trainer: kind == "trial")
    monkeypatch.setattr(schedule_module, "steps_of_run", lambda trainer: 10)
    module = SimpleNamespace(automatic_optimization=kind != "manual")
    silent = said is None or kind == "trial" or (kind == "manual" and "steps" in said)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedule.warn_if_beyond_end(trainer(**changes), module, "the swap", anneal_steps)
    assert [said in str(warning.message) for warning in caught] == ([] if silent else [True])
