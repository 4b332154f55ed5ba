"""`--ckpt_path` of a swapped model of one's own: with its `ActivationSwap` as it was trained, without it refused."""

import csv
import importlib
import sys
from pathlib import Path

import pytest
import torch
from cli_helpers import FAST, forget_seeds
from small_task import quiet_trainer
from torch.nn import functional

from lit_gelu.callbacks import ActivationSwap
from lit_gelu.cli.main import main

MODULE = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu import surgery


class SwappedNet(LightningModule):
    def __init__(self, width: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.inner, self.middle, self.outer = nn.Linear(3, width), nn.Linear(width, width), nn.Linear(width, 2)
        self.activation = nn.ReLU()

    def forward(self, x):
        return self.outer(functional.silu(self.middle(self.activation(self.inner(x)))))

    def training_step(self, batch, number):
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    validation_step = test_step = training_step

    def predict_step(self, batch, number):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class SwappedData(LightningDataModule):
    def train_dataloader(self):
        x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class SwapsByItself(SwappedNet):
    def on_load_checkpoint(self, checkpoint):
        surgery.swap(self, {"activation": "gelu"})


class NotStrict(SwappedNet):
    strict_loading = False
"""
ARGS = ["--import=swapped_cli_module", "--model=swapped_cli_module.SwappedNet", "--data=swapped_cli_module.SwappedData"]
LOGGED = [*FAST, "--trainer.max_epochs=2", "--trainer.log_every_n_steps=1"]
pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    (tmp_path / "swapped_cli_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("swapped_cli_module", None)
    forget_seeds()


@pytest.fixture
def module(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(tmp_path))
        return importlib.import_module("swapped_cli_module")


def trained(module, swaps, **options):
    """Train for an epoch with a swap at its first step, and save swapped.ckpt."""
    torch.manual_seed(0)
    callbacks = [ActivationSwap(swaps, at_step=1, **options)] if swaps else []
    trainer = quiet_trainer(max_epochs=1, callbacks=callbacks)
    net = module.SwappedNet()
    trainer.fit(net, module.SwappedData())
    trainer.save_checkpoint("swapped.ckpt")
    return net


def loss_by_hand(module, function):
    """The mean loss on the data, of the checkpoint's weights and a function in the place of ReLU."""
    weights = torch.load("swapped.ckpt", weights_only=True)["state_dict"]
    x, labels = module.SwappedData().test_dataloader().dataset.tensors
    for layer, function_of_layer in (("inner", function), ("middle", functional.silu), ("outer", lambda y: y)):
        x = function_of_layer(functional.linear(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
    return functional.cross_entropy(x, labels).item()


def logged_loss():
    (path,) = Path().rglob("metrics.csv")
    with path.open() as file:
        (row,) = csv.DictReader(file)
    return float(row["loss"])


SWAP = ["--trainer.callbacks=ActivationSwap", "--trainer.callbacks.at_step=1"]


def test_it_is_measured_as_it_was_trained_with_the_callback_alone(module, capsys):
    trained(module, {"activation": "gelu"})
    measuring = ["test", *LOGGED, *ARGS, "--ckpt_path=swapped.ckpt"]
    assert main(measuring) == 2
    assert "ActivationSwap" in capsys.readouterr().err
    assert main([*measuring, *SWAP, "--trainer.callbacks.swaps={activation: gelu}"]) == 0
    assert logged_loss() == pytest.approx(loss_by_hand(module, functional.gelu), rel=1e-5)


@pytest.mark.parametrize("name", ["SwappedNet", "NotStrict"])
@pytest.mark.parametrize("swaps", [{"activation": "gelu"}, {"activation:silu": "mish"}])
def test_no_command_takes_it_without_the_callback(name, swaps, module, capsys):
    trained(module, swaps, input_sample=torch.zeros(1, 3))
    options = [option.replace(".SwappedNet", f".{name}") for option in ARGS]
    for command in ("fit", "predict"):
        assert main([command, *LOGGED, *options, "--ckpt_path=swapped.ckpt"]) == 2
        assert capsys.readouterr().err.startswith("lit-gelu ")


def test_fit_goes_on_with_the_callback(module):
    trained(module, {"activation": "gelu"})
    going_on = ["fit", *LOGGED, *ARGS, *SWAP, "--trainer.callbacks.swaps={activation: gelu}"]
    assert main([*going_on, "--ckpt_path=swapped.ckpt"]) == 0
    (path,) = Path("runs").rglob("*.ckpt")
    assert torch.load(path, weights_only=True)["lit_gelu_activations"] == {"activation": "gelu"}
