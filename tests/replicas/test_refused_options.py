"""Trainers that a group does not take."""

from types import SimpleNamespace

import pytest
import torch
from measured_replicas import CELLS, Measuring, Sets
from small_task import quiet_trainer

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
        state=SimpleNamespace(fn="fit"),
        strategy=SimpleNamespace(root_device=torch.device(device)),
    )
    with pytest.raises(NotReplicableError, match=said):
        check_trainer(trainer, "the net is not known")
