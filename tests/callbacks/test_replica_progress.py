"""The bar of a group, inside Trainer.fit; on a machine without Rich there is none."""

import pytest
import torch
from lightning.pytorch.callbacks import RichProgressBar
from replica_runs import Samples
from small_task import quiet_trainer

from lit_gelu.callbacks import ReplicaProgressBar
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import TweetTagger

pytest.importorskip("rich")
STEPS, EPOCHS = 7, 2


class Kept(ReplicaProgressBar):
    """Keeps what is shown at the end of every batch."""

    def __init__(self):
        super().__init__(refresh_rate=1)
        self.shown = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        super().on_train_batch_end(trainer, pl_module, *args)
        task = self.progress.tasks[self.train_progress_bar_id]
        self.shown.append((task.completed, task.total, self.get_metrics(trainer, pl_module).get("members")))


def shown_for(module, data):
    bar = Kept()
    options = {"max_epochs": EPOCHS, "callbacks": [bar], "enable_progress_bar": True, "limit_val_batches": 0}
    quiet_trainer(**options).fit(module, datamodule=data)
    return bar.shown


def test_steps_of_a_group_are_counted_and_batches_of_other_modules():
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(4 * STEPS, 24, generator=generator), torch.randint(25, (4 * STEPS,), generator=generator)
    group = ReplicaGroup.of(TweetTagger, [{"vector_size": 8}] * 2, [0, 1], steps_per_batch=3)
    group.active[1] = False
    found = shown_for(group, ReplicaDataModule(Samples(samples, 4)))
    assert found == [(steps, STEPS, "1/2") for _ in range(EPOCHS) for steps in (3, 6, 7)]
    assert issubclass(ReplicaProgressBar, RichProgressBar)
    alone = shown_for(TweetTagger(vector_size=8), Samples(samples, 4))
    assert alone == [(steps, STEPS, None) for _ in range(EPOCHS) for steps in range(1, STEPS + 1)]
