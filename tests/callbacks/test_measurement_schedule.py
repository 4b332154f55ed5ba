"""At which steps a monitor measures."""

import math
from typing import ClassVar

import pytest
import torch
from callback_helpers import SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch import Callback

from lit_gelu.callbacks import measurement_schedule as schedule_module
from lit_gelu.callbacks.measurement_schedule import MeasurementSchedule
from lit_gelu.errors import ArgumentError


class Measure(Callback):
    """Notes the steps that are due, at the batch that begins them."""

    def __init__(self, seconds=0.0, **arguments):
        self.schedule = MeasurementSchedule(**arguments)
        self.seconds = seconds
        self.steps, self.batches, self.costs = [], [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.due = self.schedule.is_due(trainer)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.due:
            self.steps.append(trainer.fit_loop.epoch_loop._batches_that_stepped)
            self.batches.append((trainer.current_epoch, batch_idx))
            self.costs.append(self.schedule.record_cost(trainer, self.seconds))

    def on_validation_start(self, trainer, pl_module):
        self.schedule.pause()

    def state_dict(self):
        return self.schedule.state_dict()

    def load_state_dict(self, state_dict):
        self.schedule.load_state_dict(state_dict)


def measured(folder, measure, *callbacks, data=None, **options):
    quiet_trainer(folder, measure, *callbacks, logger=False, **options).fit(
        SmallNet(), loader() if data is None else data
    )
    return measure.steps


def test_steps_are_those_of_lightnings_logging_gate(tmp_path):
    class Gate(Callback):
        steps: ClassVar[list[int]] = []

        def on_train_batch_end(self, trainer, *arguments):
            if trainer._logger_connector.should_update_logs:
                Gate.steps.append(trainer.fit_loop.epoch_loop._batches_that_stepped)

    measure = Measure(every_n_steps=3)
    trainer = quiet_trainer(tmp_path, measure, Gate(), log_every_n_steps=3, max_epochs=3)
    trainer.fit(SmallNet(), loader())
    assert measure.steps == Gate.steps == [2, 5, 8, 11]
    assert [cost.interval for cost in measure.costs] == [3, 3, 3, 3]
    assert measure.schedule.events == 4


def test_chosen_steps(tmp_path):
    assert measured(tmp_path, Measure(at_steps=[0, 5, 100])) == [0, 5]


def test_a_step_of_several_batches_is_measured_once(tmp_path):
    measure = Measure(every_n_steps=2)
    assert measured(tmp_path, measure, accumulate_grad_batches=2, max_epochs=2) == [1, 3]
    assert measure.batches == [(0, 2), (1, 2)]


def test_last_step_of_every_second_epoch(tmp_path):
    measure = Measure(every_n_epochs=2)
    assert measured(tmp_path, measure, max_epochs=4) == [7, 15]
    assert measure.batches == [(1, 3), (3, 3)]


def test_last_step_of_an_epoch_under_accumulation_begins_with_its_first_batch(tmp_path):
    measure = Measure(every_n_epochs=1)
    measured(tmp_path, measure, data=loader(40, 8), accumulate_grad_batches=2, max_epochs=1)
    assert measure.batches == [(0, 4)]
    measure = Measure(every_n_epochs=1)
    measured(tmp_path, measure, data=loader(32, 8), accumulate_grad_batches=2, max_epochs=1)
    assert measure.batches == [(0, 2)]


class Clock:
    """Says how late it is; a training step takes one second, unless a test says otherwise."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


class Tick(Callback):
    """Lets time pass: in a training step, in a measurement, in a validation."""

    def __init__(self, clock, measure, validation=0.0):
        self.clock, self.measure, self.validation = clock, measure, validation

    def on_before_backward(self, *arguments):
        self.clock.now += 1.0
        if self.measure.due:
            self.clock.now += self.measure.seconds

    def on_validation_batch_start(self, *arguments):
        self.clock.now += self.validation


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(schedule_module, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("seconds", "overhead"), [(0.5, 0.125), (2.0, 0.25), (0.625, 0.25), (0.0625, 0.125), (1.0, 2.0)]
)
def test_events_stay_under_their_share_of_training_time(tmp_path, clock, seconds, overhead):
    measure = Measure(seconds, every_n_steps=1, max_overhead=overhead)
    steps = measured(tmp_path, measure, Tick(clock, measure), max_epochs=10)
    for number, step in enumerate(steps):
        assert number * seconds <= overhead * (step + 1)  # at an event, those before it are paid for
    # and none is put off for longer than that
    due = [max(number, math.ceil(number * seconds / overhead) - 1) for number in range(40)]
    assert steps == [step for step in due if step < 40]


def test_validation_counts_as_no_training(tmp_path, clock):
    measure = Measure(1.0, every_n_steps=1, max_overhead=0.125)
    trainer = quiet_trainer(tmp_path, measure, Tick(clock, measure, validation=100.0), max_epochs=10)

    class Validated(SmallNet):
        def validation_step(self, batch, batch_idx):
            pass

    trainer.fit(Validated(), loader(), loader())
    assert measure.steps == [0, 7, 15, 23, 31, 39]


def test_a_resumed_run_goes_on_with_the_stretched_interval(tmp_path, clock):
    measure = Measure(1.5, every_n_steps=1, max_overhead=0.125)
    trainer = quiet_trainer(tmp_path, measure, Tick(clock, measure), max_epochs=1, logger=False)
    model = SmallNet()
    trainer.fit(model, loader())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    assert measure.steps == [0]
    resumed = Measure(1.5, every_n_steps=1, max_overhead=0.125)
    trainer = quiet_trainer(tmp_path, resumed, Tick(clock, resumed), max_epochs=10, logger=False)
    trainer.fit(SmallNet(), loader(), ckpt_path=tmp_path / "end.ckpt")
    assert resumed.steps == [11, 23, 35]
    assert resumed.schedule.events == 4


class OwnTimes(Measure):
    """Says that its measurement took as many seconds as its rank's number."""

    def __init__(self, folder, **arguments):
        super().__init__(**arguments)
        self.folder = folder

    def on_train_batch_start(self, trainer, *arguments):
        self.seconds = 1e-9 + trainer.global_rank * 1e6  # paid for after weeks
        super().on_train_batch_start(trainer, *arguments)

    def on_train_end(self, trainer, pl_module):
        torch.save((self.steps, self.costs[0].seconds), self.folder / f"rank{trainer.global_rank}.pt")


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_ranks_decide_alike_by_the_slowest(tmp_path):
    measure = OwnTimes(tmp_path, every_n_steps=1, max_overhead=0.5)
    quiet_trainer(tmp_path, measure, strategy="ddp_fork", devices=2, max_epochs=1).fit(SmallNet(), loader())
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first == second == ([0], pytest.approx(1e6))


@pytest.mark.parametrize(
    "arguments",
    [
        {"every_n_steps": 0},
        {"every_n_steps": True},
        {"every_n_epochs": -1},
        {"at_steps": []},
        {"at_steps": [3, -1]},
        {"every_n_steps": 5, "every_n_epochs": 1},
        {"max_overhead": 0.0},
        {"max_overhead": math.nan},
        {"at_steps": [1], "max_overhead": 0.1},
    ],
)
def test_refusals(arguments):
    with pytest.raises(ArgumentError):
        MeasurementSchedule(**arguments)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({"every_n_steps": 9}, {}),
        ({"every_n_epochs": 3}, {}),
        ({"every_n_epochs": 2}, {"max_epochs": -1, "max_steps": 7}),
        ({"at_steps": [8]}, {}),
    ],
)
def test_a_run_too_short_for_a_measurement_warns(tmp_path, arguments, options):
    class Warns(Measure):
        def on_train_start(self, trainer, pl_module):
            self.schedule.warn_if_never_due(trainer, "Monitor")

    with collected_warnings("Monitor(") as messages:
        assert measured(tmp_path, Warns(**arguments), **options) == []
    assert len(messages) == 1
