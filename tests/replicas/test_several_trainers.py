"""A group in the hands of one Trainer after another."""

import pytest
import torch
from lightning.pytorch import seed_everything
from measured_replicas import CELLS, SEEDS, Measuring, Sets
from replica_runs import same_content
from small_task import quiet_trainer
from torch.optim import lr_scheduler

from lit_gelu.callbacks import ExactResume
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup


def on_a_plateau(optimizer, module):
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


def test_a_second_fit_steps_schedulers_again():
    cells = [{**cell, "schedule": on_a_plateau} for cell in CELLS]
    group, data = ReplicaGroup.of(Measuring, cells, SEEDS), ReplicaDataModule(Sets())
    for _ in range(2):
        trainer = quiet_trainer(max_epochs=3, num_sanity_val_steps=0)
        trainer.fit(group, datamodule=data)
    for replica, (cell, seed) in enumerate(zip(cells, SEEDS, strict=True)):
        seed_everything(seed, verbose=False)
        module, own = Measuring(**cell), Sets()
        for _ in range(2):
            alone = quiet_trainer(max_epochs=3, num_sanity_val_steps=0)
            alone.fit(module, datamodule=own)
        saved = group.member_checkpoint(replica)
        assert same_content(saved["lr_schedulers"], [alone.lr_scheduler_configs[0].scheduler.state_dict()])
        assert (saved["epoch"], saved["global_step"]) == (3, trainer.global_step)
        torch.testing.assert_close(dict(saved["state_dict"]), dict(module.state_dict()), rtol=1e-4, atol=1e-5)


def looked_at(look, fitted, data, folder):
    """Train, let another Trainer look at what was trained, and return the first one."""
    trainer = quiet_trainer(max_epochs=2, callbacks=[ExactResume()] if folder is None else [])
    trainer.fit(fitted, datamodule=data)
    if folder is not None:
        trainer.save_checkpoint(folder / "group.ckpt")
    getattr(quiet_trainer(), look)(fitted, datamodule=data, verbose=False)
    return trainer


@pytest.mark.parametrize("look", ["validate", "test"])
def test_a_member_goes_on_alone_after_another_trainer_looked_at_the_group(tmp_path, look):
    group = ReplicaGroup.of(Measuring, CELLS, SEEDS)
    trainer = looked_at(look, group, ReplicaDataModule(Sets()), tmp_path)
    group.save_member(1, tmp_path / "member.ckpt")
    seed_everything(SEEDS[1], verbose=False)
    looked_at(look, Measuring(**CELLS[1]), Sets(), None).save_checkpoint(tmp_path / "alone.ckpt")
    weights = []
    for name in ("member", "alone"):
        module, alone = Measuring(**CELLS[1]), quiet_trainer(max_epochs=4, callbacks=[ExactResume()])
        alone.fit(module, datamodule=Sets(), ckpt_path=tmp_path / f"{name}.ckpt", weights_only=True)
        weights.append(dict(module.state_dict()))
        assert alone.global_step == 2 * trainer.global_step
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
    loaded = ReplicaGroup.of(Measuring, CELLS, SEEDS)
    path = tmp_path / "group.ckpt"
    getattr(quiet_trainer(), look)(loaded, datamodule=ReplicaDataModule(Sets()), ckpt_path=path, verbose=False)
    assert [loaded.member_checkpoint(0)[name] for name in ("epoch", "global_step")] == [2, trainer.global_step]
