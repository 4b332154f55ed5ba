"""What a module logs over an epoch is that of the whole epoch, wherever in it a run was resumed."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import TensorDataset

from lit_gelu.callbacks import ActivationSwap, ExactResume
from lit_gelu.data import (
    ResumableDataLoader,
)
from lit_gelu.errors import CheckpointError

QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "log_every_n_steps": 1,
}
pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed", "ignore:Checkpoint directory")
NAMES = {"loss_epoch", "total", "least", "most", "all", "norm"}


def loader(*, shuffle=False):
    torch.manual_seed(0)
    return ResumableDataLoader(TensorDataset(torch.randn(22, 3), torch.randn(22, 1)), batch_size=4, shuffle=shuffle)


class Logs(LightningModule):
    """Logs in every way in which values of an epoch are put together."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        for name, reduce in {"total": "sum", "least": torch.min, "most": max, "all": sum}.items():
            self.log(name, loss * 3, on_step=False, on_epoch=True, reduce_fx=reduce)
        return loss

    def on_after_backward(self):
        self.log("norm", self.net[0].weight.grad.norm(), on_step=False, on_epoch=True, batch_size=1)

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Ends(Callback):
    """Notes the metrics at the end of each epoch."""

    def __init__(self):
        self.noted = {}

    def on_train_epoch_end(self, trainer, pl_module):
        self.noted[trainer.current_epoch] = {name: trainer.callback_metrics[name].item() for name in NAMES}


def trained(folder, *callbacks, ckpt=None, validates=True, **options):
    seed_everything(1, verbose=False)
    saves = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = Trainer(
        max_epochs=3,
        limit_val_batches=1.0 if validates else 0,
        num_sanity_val_steps=0,
        callbacks=[*callbacks, ExactResume(), saves],
        **QUIET,
        **options,
    )
    trainer.fit(Logs(), loader(shuffle=True), loader(), ckpt_path=ckpt, weights_only=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("validates", [True, False])
def test_values_of_an_epoch_are_those_of_the_unbroken_run(tmp_path, validates):
    whole = Ends()
    trained(tmp_path, whole, validates=validates)
    files = sorted(tmp_path.glob("*.ckpt"))
    assert len(files) == 18
    for file in files:
        resumed = Ends()
        trained(tmp_path / "again", resumed, ckpt=file, validates=validates)
        assert resumed.noted
        assert resumed.noted == {epoch: whole.noted[epoch] for epoch in resumed.noted}, file


@pytest.mark.one_in(2)
@pytest.mark.parametrize("trigger", [{"reaches": 0.49}, {"mode": "max", "patience": 1}])
def test_a_swap_that_waits_for_a_metric_of_training_is_made_where_it_would_have_been(tmp_path, trigger):
    def swap():
        return ActivationSwap({"*": "gelu"}, when="loss", check_on_train_epoch_end=True, **trigger)

    whole = swap()
    trained(tmp_path, whole)
    assert whole.record is not None
    for file in tmp_path.glob("*.ckpt"):
        resumed = swap()
        trained(tmp_path / "again", resumed, ckpt=file)
        assert resumed.record.step == whole.record.step, file


class Sees(Callback):
    """Notes what callbacks see behind each validation."""

    def __init__(self):
        self.noted = {}

    def on_validation_end(self, trainer, pl_module):
        self.noted[trainer.global_step] = {name: value.item() for name, value in trainer.callback_metrics.items()}


def test_a_validation_sees_the_latest_values_wherever_the_run_was_resumed(tmp_path):
    whole = Sees()
    trained(tmp_path, whole, EarlyStopping("loss_step", patience=50), val_check_interval=0.5)
    assert "loss_step" in whole.noted[3]
    for file in tmp_path.glob("*.ckpt"):
        resumed = Sees()
        trained(tmp_path / "again", resumed, EarlyStopping("loss_step", patience=50), ckpt=file, val_check_interval=0.5)
        assert resumed.noted
        assert resumed.noted == {step: whole.noted[step] for step in resumed.noted}, file


def test_a_checkpoint_without_latest_values_is_resumed(tmp_path):
    whole, resumed = Ends(), Ends()
    trained(tmp_path, whole)
    checkpoint = torch.load(tmp_path / "step=6.ckpt", weights_only=True)
    del checkpoint["callbacks"]["ExactResume"]["ranks"][0]["metrics"]
    torch.save(checkpoint, tmp_path / "earlier.ckpt")
    trained(tmp_path / "again", resumed, ckpt=tmp_path / "earlier.ckpt")
    assert resumed.noted == whole.noted


@pytest.mark.parametrize("damage", [1.0, torch.ones(2)])
def test_damaged_values_are_refused(tmp_path, damage):
    trained(tmp_path)
    checkpoint = torch.load(tmp_path / "step=2.ckpt", weights_only=True)
    checkpoint["callbacks"]["ExactResume"]["ranks"][0]["metrics"]["loss_step"] = damage
    torch.save(checkpoint, tmp_path / "damaged.ckpt")
    with pytest.raises(CheckpointError, match="logged metrics is damaged"):
        trained(tmp_path / "again", ckpt=tmp_path / "damaged.ckpt")


@pytest.mark.parametrize("damage", [{"value": 1.0}, {"reduce_fx": "median"}, {"on_epoch": "yes"}, {"name": None}])
def test_damaged_sums_are_refused(tmp_path, damage):
    trained(tmp_path)
    checkpoint = torch.load(tmp_path / "step=2.ckpt", weights_only=True)
    (rank,) = checkpoint["callbacks"]["ExactResume"]["ranks"]
    rank["sums"]["training_step.loss"].update(damage)
    torch.save(checkpoint, tmp_path / "damaged.ckpt")
    with pytest.raises(CheckpointError, match="logged metrics is damaged"):
        trained(tmp_path / "again", ckpt=tmp_path / "damaged.ckpt")
