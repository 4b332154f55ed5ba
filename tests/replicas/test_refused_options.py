"""Trainers that a group does not take."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback, callbacks, seed_everything
from measured_replicas import CELLS, SEEDS, Measuring, Sets
from small_task import quiet_trainer

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, LossCurvatureMonitor, OnnxExport
from lit_gelu.replicas import NotReplicableError, ReplicaDataModule, ReplicaGroup
from lit_gelu.replicas.refused_options import check_trainer


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_clip_val": 1.0},
        {"accumulate_grad_batches": 2},
        {"limit_train_batches": 3},
        {"limit_train_batches": 1},
        {"limit_train_batches": 0.5},
        {"overfit_batches": 1},
        {"overfit_batches": 1.0},
        {"fast_dev_run": True},
        {"fast_dev_run": 3},
        {"val_check_interval": 0.5},
        {"val_check_interval": 2},
        {"val_check_interval": 1},
        {"val_check_interval": "00:00:00:01"},
        {"precision": "bf16-mixed"},
        {"strategy": "ddp"},
    ],
)
def test_what_would_mix_replicas_is_refused(options):
    group = ReplicaGroup.of(Measuring, CELLS, steps_per_batch=4)
    with pytest.raises(NotReplicableError, match=next(iter(options))):
        quiet_trainer(**{"max_steps": 8, **options}).fit(group, datamodule=ReplicaDataModule(Sets()))


@pytest.mark.parametrize(
    ("device", "ranks", "said"),
    [("cuda", 1, 'accelerator="cpu".* not known'), ("cpu", 2, "Give every device")],
)
def test_other_devices_are_refused(device, ranks, said):
    trainer = SimpleNamespace(
        gradient_clip_val=None,
        accumulate_grad_batches=1,
        limit_train_batches=1.0,
        fast_dev_run=False,
        overfit_batches=0.0,
        precision="32-true",
        world_size=ranks,
        lightning_module=None,
        val_check_interval=1.0,
        _val_check_time_interval=None,
        check_val_every_n_epoch=1,
        callbacks=[],
        state=SimpleNamespace(fn="fit"),
        strategy=SimpleNamespace(root_device=torch.device(device)),
    )
    with pytest.raises(NotReplicableError, match=said):
        check_trainer(trainer, "the net is not known")


class Clipping(Callback):
    def on_after_backward(self, trainer, module):
        pass


class Untrained(Callback):
    def on_train_batch_start(self, *_):
        pytest.fail("a step was made")


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (Clipping(), "hook on_after_backward.*training_step"),
        (callbacks.LambdaCallback(on_before_zero_grad=print), "hook on_before_zero_grad"),
        (callbacks.LambdaCallback(on_before_backward=print), "hook on_before_backward"),
        (callbacks.LambdaCallback(on_before_optimizer_step=print), "hook on_before_optimizer_step"),
        (callbacks.EMAWeightAveraging(), "EMAWeightAveraging.*steps_per_batch=1"),
        (callbacks.StochasticWeightAveraging(0.1), "configure_optimizers"),
        (callbacks.LearningRateMonitor(), "validation_step"),
        (callbacks.LearningRateFinder(), "cells"),
        (callbacks.BatchSizeFinder(), "module alone"),
        (callbacks.GradientAccumulationScheduler({0: 2}), "larger batches"),
        (callbacks.ModelPruning("l1_unstructured"), "alone"),
        (callbacks.BackboneFinetuning(), "alone"),
        (callbacks.SpikeDetection(), r"group\.logged"),
        (OnnxExport("model.onnx"), r"export_onnx\(group\.members\[0\]"),
        (ActivationSwap({"*": "elu"}, at_step=1), r"swap\(member.*activations without parameters"),
        (LossCurvatureMonitor(), r"Measure members"),
        (ActivationCurvatureMonitor(), r"Measure members"),
    ],
)
def test_callbacks_that_would_do_something_else_are_refused(callback, said):
    group = ReplicaGroup.of(Measuring, CELLS, steps_per_batch=4)
    with pytest.raises(NotReplicableError, match=said):
        quiet_trainer(max_epochs=1, callbacks=[callback, Untrained()]).fit(group, datamodule=ReplicaDataModule(Sets()))


class Plain(Measuring):
    """Without metrics."""

    def __init__(self, **cell):
        super().__init__(**cell)
        del self.accuracy

    def validation_step(self, batch, index):
        self.log("val_loss", self.net(batch[0]).mean())

    def on_validation_epoch_end(self):
        pass


def test_weights_are_averaged_where_a_batch_is_a_step():
    group = ReplicaGroup.of(Plain, CELLS, SEEDS, steps_per_batch=1)
    averaging = [callbacks.EMAWeightAveraging()]
    quiet_trainer(max_epochs=2, callbacks=averaging).fit(group, datamodule=ReplicaDataModule(Sets()))
    for member, cell, seed in zip(group.members, CELLS, SEEDS, strict=True):
        seed_everything(seed, verbose=False)
        alone, averaging = Plain(**cell), [callbacks.EMAWeightAveraging()]
        quiet_trainer(max_epochs=2, callbacks=averaging).fit(alone, datamodule=Sets())
        torch.testing.assert_close(dict(member.state_dict()), dict(alone.state_dict()), rtol=1e-4, atol=1e-5)
