"""How many operations a measured step makes more than a plain one."""

import torch
from callback_helpers import quiet_trainer
from dispatched import Operations
from lightning.pytorch import Callback
from torch.utils.data import DataLoader

from lit_gelu.callbacks import ActivationCurvatureMonitor
from lit_gelu.tasks import MNISTClassifier

CEILING = 11  # operations a site and event


class ByStep(Callback):
    """Notes how many operations were made when a step ends; stands behind the monitor."""

    def __init__(self, operations):
        self.operations, self.counts = operations, []

    def on_train_batch_end(self, *_):
        self.counts.append(len(self.operations.names))


def operations_of_a_step(folder, *callbacks):
    batches = [(torch.rand(64, 1, 28, 28), torch.randint(10, (64,)))] * 6
    model = MNISTClassifier("gelu")
    with Operations() as operations:
        by_step = ByStep(operations)
        trainer = quiet_trainer(folder, *callbacks, by_step, max_steps=6, limit_val_batches=0, log_every_n_steps=1)
        trainer.fit(model, *[DataLoader(batches, batch_size=None)] * 2)
    # The first events look the activations up; the last ones are as all others will be.
    return by_step.counts[5] - by_step.counts[4]


def test_a_measured_step_makes_few_operations_more_than_a_plain_one(tmp_path):
    """Counted is every call that reaches the dispatcher of aten, views included, in eager code on a CPU.

    From the end of one step to the end of the next: the copies of rows, all sums, dead units and logging. No function
    is compiled, so nothing hides in one call.
    """
    monitor = ActivationCurvatureMonitor(every_n_steps=1)
    measured = operations_of_a_step(tmp_path / "measured", monitor)
    plain = operations_of_a_step(tmp_path / "plain")
    sites = len(monitor.latest)
    assert sites == 8
    assert 0 < measured - plain <= CEILING * sites, (measured - plain) / sites
