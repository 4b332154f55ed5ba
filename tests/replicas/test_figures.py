"""What training steps log of a step and of an epoch, in a group and in the runs alone."""

import csv
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from measured_replicas import CELLS, SEEDS, Measuring, Sets
from small_task import quiet_trainer

from lit_gelu.replicas import NotReplicableError, ReplicaDataModule, ReplicaGroup
from lit_gelu.replicas.figures import StepFigures


class Counting(Measuring):
    """Logs numbers of every type, of steps and of epochs."""

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        right = self.net(batch[0]).argmax(1) == batch[1]
        self.log("right", right.sum())
        self.log("any", right.any())
        self.log("share", right.float().mean(), on_step=False, on_epoch=True)
        self.log("both", loss, on_step=True, on_epoch=True, batch_size=3)
        self.log_dict(dictionary={"most": right.sum(), "least": -loss}, on_epoch=True, reduce_fx="max")
        self.log("all", right.sum(), False, True, False, True, torch.sum)
        return loss


def written(folder):
    """Return the rows that a CSVLogger has written, but for what validation logged."""
    with (folder / "lightning_logs" / "version_0" / "metrics.csv").open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items() if v and k[:3] != "val"} for row in csv.DictReader(file)]
    return [row for row in rows if row.keys() - {"epoch", "step"}]


class OnGPU(list):
    """Stands for losses, ``[steps, replicas]``, on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(
    ("values", "bar", "expected"), [(list, None, True), (OnGPU, None, False), (OnGPU, "bar", True)]
)
def test_a_gpu_is_not_waited_for_where_no_progress_bar_shows_its_loss(values, bar, expected):
    seen = []
    trainer = SimpleNamespace(progress_bar_callback=bar)
    group = SimpleNamespace(trainer=trainer, log=lambda name, value, prog_bar: seen.append((name, prog_bar)))
    losses = values([torch.ones(2)]) if values is OnGPU else torch.ones(1, 2)
    StepFigures(torch.ones(2, dtype=torch.bool), {}).take(group, {"train_loss": losses})
    assert seen == [("train_loss", expected)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("steps_per_batch", [1, 4])
@pytest.mark.filterwarnings("ignore:You called `self.log:UserWarning")
def test_figures_of_steps_and_epochs_are_those_of_the_runs_alone(tmp_path, executor, steps_per_batch):
    alone = []
    for replica, (cell, seed) in enumerate(zip(CELLS, SEEDS, strict=True)):
        seed_everything(seed, verbose=False)
        trainer = quiet_trainer(max_epochs=2, logger=CSVLogger(tmp_path / str(replica)))
        trainer.fit(Counting(**cell), datamodule=Sets())
        alone.append((dict(trainer.callback_metrics), written(tmp_path / str(replica))))
    group = ReplicaGroup.of(Counting, CELLS, SEEDS, executor=executor, steps_per_batch=steps_per_batch)
    trainer = quiet_trainer(max_epochs=2, logger=CSVLogger(tmp_path / "group"))
    trainer.fit(group, datamodule=ReplicaDataModule(Sets()))
    assert trainer.callback_metrics.keys() == alone[0][0].keys()
    for name, value in trainer.callback_metrics.items():
        wanted = torch.stack([metrics[name].float() for metrics, _ in alone]).mean()
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6)
    ours, theirs = written(tmp_path / "group"), [rows for _, rows in alone]
    for row, *others in zip(ours, *theirs, strict=True):
        wanted = {name: sum(other[name] for other in others) / len(others) for name in others[0]}
        assert row == pytest.approx(wanted, rel=1e-5)


def test_callbacks_see_the_epochs_figure():
    group = ReplicaGroup.of(Counting, CELLS, SEEDS)
    stopping = EarlyStopping("both_epoch", patience=1, min_delta=1e9)
    trainer = quiet_trainer(max_epochs=9, callbacks=[stopping])
    trainer.fit(group, datamodule=ReplicaDataModule(Sets()))
    assert trainer.current_epoch == 2
    own = torch.cat(group.logged["both"]).mean(0)
    torch.testing.assert_close(trainer.callback_metrics["both_epoch"], own.mean())


OF_EPOCHS = {"share", "both", "both_epoch", "most", "most_epoch", "least", "least_epoch", "all"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.filterwarnings("ignore:You called `self.log:UserWarning", "ignore:The dirpath", "ignore:Checkpoint dir")
def test_a_resumed_epochs_figures_are_those_of_the_whole_one(tmp_path, executor):
    def fitted(folder, ckpt=None):
        group = ReplicaGroup.of(Counting, CELLS, SEEDS, executor=executor)
        saving = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1)
        trainer = quiet_trainer(max_epochs=1, callbacks=[saving], enable_checkpointing=True)
        trainer.fit(group, datamodule=ReplicaDataModule(Sets()), ckpt_path=ckpt, weights_only=True)
        return {name: value for name, value in trainer.callback_metrics.items() if name in OF_EPOCHS}

    whole = fitted(tmp_path)
    assert whole.keys() == OF_EPOCHS
    files = sorted(tmp_path.glob("*.ckpt"))
    assert len(files) > 3
    for file in files:
        torch.testing.assert_close(fitted(tmp_path / "again", file), whole, rtol=0, atol=0, msg=str(file))


class Changing(Measuring):
    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("share", loss, on_epoch=True, batch_size=1 + index)
        return loss


class Median(Measuring):
    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("median", loss, on_epoch=True, reduce_fx=torch.median)
        return loss


@pytest.mark.parametrize(
    ("build", "said"), [(Changing, "batch_size=1 and .*batch_size=2.*in one way"), (Median, "reduce_fx=.*'mean'")]
)
def test_figures_that_a_group_does_not_reduce_are_refused(build, said):
    group = ReplicaGroup.of(build, CELLS, SEEDS)
    with pytest.raises(NotReplicableError, match=said):
        quiet_trainer(max_epochs=1).fit(group, datamodule=ReplicaDataModule(Sets()))
