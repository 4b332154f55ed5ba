"""At which steps a monitor measures."""

import pytest
from callback_helpers import SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch import Callback

from lit_gelu.callbacks.measurement_schedule import MeasurementSchedule
from lit_gelu.errors import ArgumentError


class Measure(Callback):
    """Notes the steps that are due, at the batch that begins them."""

    def __init__(self, **arguments):
        self.schedule = MeasurementSchedule(**arguments)
        self.steps, self.batches = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.due = self.schedule.is_due(trainer)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.due:
            self.steps.append(trainer.fit_loop.epoch_loop._batches_that_stepped)
            self.batches.append((trainer.current_epoch, batch_idx))
            self.schedule.record(trainer)


def measured(folder, measure, *callbacks, data=None, **options):
    quiet_trainer(folder, measure, *callbacks, logger=False, **options).fit(
        SmallNet(), loader() if data is None else data
    )
    return measure.steps


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
    for examples, first in ((40, 4), (32, 2)):
        measure = Measure(every_n_epochs=1)
        measured(tmp_path, measure, data=loader(examples, 8), accumulate_grad_batches=2, max_epochs=1)
        assert measure.batches == [(0, first)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"every_n_steps": 0},
        {"every_n_steps": True},
        {"every_n_epochs": -1},
        {"at_steps": []},
        {"at_steps": [3, -1]},
        {"every_n_steps": 5, "every_n_epochs": 1},
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
