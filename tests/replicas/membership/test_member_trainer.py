"""What members see of the Trainer, and what they do with it, against the runs alone."""

import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from measured_replicas import CELLS, SEEDS, Measuring, Sets, check_as_alone
from small_task import quiet_trainer
from torch.nn import functional
from torch.optim import lr_scheduler

from lit_gelu.replicas import NotReplicableError, ReplicaDataModule, ReplicaGroup


def by_lengths(optimizer, module):
    trainer = module.trainer
    steps = len(trainer.datamodule.train_dataloader()) * trainer.max_epochs
    schedules = [
        lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps + 1),
        lr_scheduler.CosineAnnealingLR(optimizer, trainer.datamodule.batch_size),
    ]
    return [optimizer], [{"scheduler": schedule, "interval": "step"} for schedule in schedules]


class ByBatches(Measuring):
    """Steps that read where in the epoch they are."""

    def training_step(self, batch, index):
        share = (1 + self.global_step) / len(self.trainer.train_dataloader)
        return super().training_step(batch, index) * min(1, share) * (0.1 if self.trainer.is_last_batch else 1)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_lengths_and_places_are_those_of_the_run_alone(executor):
    check_as_alone(ByBatches, [{**cell, "schedule": by_lengths} for cell in CELLS], executor=executor)


class ByFigures(Measuring):
    """Steps that read what the run has logged, and the optimizer's rate."""

    def training_step(self, batch, index):
        metrics = self.trainer.callback_metrics
        scale = sum(metrics.get(name, 1.0) for name in ("val_loss", "train_loss", "both_step", "both_epoch")) / 20
        loss = super().training_step(batch, index)
        self.log("both", loss, on_epoch=True)
        return loss * scale * (1 + self.optimizers().param_groups[0]["lr"] + self.lr_schedulers().get_last_lr()[0])


def decaying(optimizer, module):
    return [optimizer], [lr_scheduler.ExponentialLR(optimizer, 0.5)]


def test_figures_and_optimizers_are_a_members_own():
    check_as_alone(ByFigures, [{**cell, "schedule": decaying} for cell in CELLS], executor="loop")


class Looking(Measuring):
    """Validation that reads the same."""

    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.log("before", self.trainer.callback_metrics.get("train_loss", torch.zeros(())))
        self.log("rate", self.trainer.optimizers[0].param_groups[0]["lr"] * self.optimizers().param_groups[0]["lr"])
        return {"largest": batch[0].max() * self.lr}

    def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        self.log("largest", outputs["largest"])

    def on_validation_epoch_end(self):
        self.log("now", self.trainer.callback_metrics["val_loss"])
        super().on_validation_epoch_end()


def test_validation_reads_the_members_own():
    check_as_alone(Looking, num_sanity_val_steps=0)


class Combined(Sets):
    def val_dataloader(self):
        return CombinedLoader([super().val_dataloader(), super().val_dataloader()], "max_size_cycle")


class OfTwo(Measuring):
    def validation_step(self, batch, index):
        (inputs, _), (_, labels) = batch
        self.log("val_loss", functional.cross_entropy(self.net(inputs), labels))

    def on_validation_epoch_end(self):
        pass


def test_a_batch_of_several_loaders_at_once():
    check_as_alone(OfTwo, data=Combined)


def reading(read):
    class Reading(Measuring):
        def training_step(self, batch, index):
            read(self)
            return super().training_step(batch, index)

    return Reading


def stop(module):
    module.trainer.should_stop = True


@pytest.mark.parametrize(
    ("read", "executor", "said"),
    [
        (lambda m: m.optimizers(), "vmap", 'optimizers.*executor="loop"'),
        (lambda m: m.lr_schedulers(), "vmap", 'lr_scheduler_configs.*executor="loop"'),
        (lambda m: m.trainer.callback_metrics, "vmap", 'callback_metrics.*executor="loop"'),
        (lambda m: m.trainer.logged_metrics, "loop", "logged_metrics.*Read callback_metrics"),
        (lambda m: m.trainer.fit_loop.batch_idx, "loop", r"fit_loop.*is_last_batch"),
        (stop, "loop", r"should_stop.*group\.active\[replica\]"),
    ],
)
def test_what_is_of_the_whole_group_is_refused(read, executor, said):
    group = ReplicaGroup.of(reading(read), CELLS, SEEDS, executor=executor)
    with pytest.raises(NotReplicableError, match=said):
        quiet_trainer(max_epochs=1).fit(group, datamodule=ReplicaDataModule(Sets()))
