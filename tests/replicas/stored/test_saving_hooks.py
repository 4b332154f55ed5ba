"""Hooks of members and data around saving and loading, as in the run alone."""

import pytest
import torch
from lightning.pytorch import LightningModule
from small_task import SmallData, quiet_trainer

from lit_gelu.replicas import NotReplicableError, ReplicaDataModule, ReplicaGroup
from lit_gelu.replicas.stored.extraction import extracted


def read(path):
    return torch.load(path, weights_only=True)


class Stamping(LightningModule):
    """Layers of one weight, and a hook that reads what its checkpoint begins with."""

    reads = ("epoch", "global_step")

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(784, 784), torch.nn.Linear(784, 784)
        self.second.weight = self.first.weight

    def training_step(self, batch, index):
        inputs = batch[0].flatten(1)
        return (self.second(self.first(inputs)) - inputs).square().mean()

    def validation_step(self, batch, index):
        self.log("val_loss", self.training_step(batch, index))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["stamp"] = [checkpoint[name] for name in self.reads]


class OfOptimizers(Stamping):
    reads = ("optimizer_states",)


class Counting(SmallData):
    """Data with hooks of their own."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def val_dataloader(self):
        assert self.trainer.max_epochs == 2
        return super().val_dataloader()

    def teardown(self, stage):
        self.calls.append(stage)

    def state_dict(self):
        return {"read": 7}

    def load_state_dict(self, state_dict):
        self.calls.append(state_dict)


def test_hooks_of_saving_and_of_data_are_called_as_alone(tmp_path):
    group, data = ReplicaGroup.of(Stamping, [{}, {}], [0, 1]), Counting()
    trainer = quiet_trainer(max_epochs=2)
    trainer.fit(group, datamodule=ReplicaDataModule(data))
    trainer.save_checkpoint(tmp_path / "group.ckpt")
    assert data.calls == ["fit"]
    alone, module = quiet_trainer(max_epochs=2), Stamping()
    alone.fit(module, datamodule=Counting())
    alone.save_checkpoint(tmp_path / "alone.ckpt")
    wanted = read(tmp_path / "alone.ckpt")
    _, out = extracted(read(tmp_path / "group.ckpt"), "1")
    for member in (group.member_checkpoint(1), out):
        assert member["stamp"] == wanted["stamp"] == [2, 2 * 3]
        assert member[Counting.__qualname__] == wanted[Counting.__qualname__] == {"read": 7}
        assert member.keys() == {name for name in wanted if not name.startswith("datamodule_")}
    again = Counting()
    trainer = quiet_trainer(max_epochs=2)
    trainer.fit(group, datamodule=ReplicaDataModule(again), ckpt_path=tmp_path / "group.ckpt", weights_only=True)
    assert again.calls == [{"read": 7}, "fit"]


def test_a_hook_that_reads_what_is_not_there_yet_is_refused():
    group = ReplicaGroup.of(OfOptimizers, [{}])
    quiet_trainer(max_epochs=2).fit(group, datamodule=ReplicaDataModule(Counting()))
    with pytest.raises(NotReplicableError, match=r"'optimizer_states'.*epoch, global_step"):
        group.member_checkpoint(0)


def test_weights_with_two_names_are_saved_for_each_member_alone(tmp_path):
    sizes = []
    for count in (1, 4):
        group, trainer = ReplicaGroup.of(Stamping, [{}] * count, list(range(count))), quiet_trainer(max_steps=1)
        trainer.fit(group, datamodule=ReplicaDataModule(SmallData()))
        trainer.save_checkpoint(tmp_path / "group.ckpt")
        sizes.append((tmp_path / "group.ckpt").stat().st_size)
    assert sizes[1] < 4.2 * sizes[0]
