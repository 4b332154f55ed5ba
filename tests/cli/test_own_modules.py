"""Modules of one's own in the current folder: found, imported, trained, exported, proved, timed, measured."""

import json
import sys

import onnx
import pytest
import torch
import yaml
from cli_helpers import FAST

from lit_gelu import activations
from lit_gelu.cli.main import main
from lit_gelu.export import OnnxPredictor

MODULE = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu import activations


@activations.register("wavy")
def wavy(x, amount=0.5):
    return x + amount * torch.sin(x)


class OwnNet(LightningModule):
    def __init__(self, width: int = 4, activation: str = "gelu"):
        super().__init__()
        self.save_hyperparameters()
        self.inner = nn.Linear(3, width)
        self.activation = activations.create(activation)
        self.outer = nn.Linear(width, 2)

    def forward(self, x):
        return self.outer(functional.silu(self.activation(self.inner(x))))

    def training_step(self, batch, number):
        x, y = batch
        return functional.cross_entropy(self(x), y)

    test_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OwnTokens(LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding, self.outer = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, ids, scale):
        return self.outer(functional.gelu(self.embedding(ids) * scale.unsqueeze(-1)))


class OwnData(LightningDataModule):
    def train_dataloader(self):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(64, 3, generator=generator)
        return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16)

    def test_dataloader(self):
        return [self.train_dataloader()]
"""
LOGGED = [*FAST, "--trainer.max_epochs=1", "--trainer.log_every_n_steps=1"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    (tmp_path / "own_cli_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)
    with activations.registry.scope():
        yield
    sys.modules.pop("own_cli_module", None)
    assert str(tmp_path) not in sys.path


@pytest.fixture
def checkpoint(tmp_path):
    arguments = ["--import=own_cli_module", "--model=OwnNet", "--data=OwnData", "--model.activation=wavy(amount=0.25)"]
    assert main(["fit", *LOGGED, *arguments]) == 0
    (path,) = tmp_path.rglob("*.ckpt")
    return str(path)


@pytest.mark.full
def test_the_whole_way_with_a_model_that_says_nothing_of_its_input(checkpoint, tmp_path, capsys):
    config = next(tmp_path.rglob("config.yaml"))
    assert yaml.safe_load(config.read_text())["import"] == ["own_cli_module"]
    evaluated = ["--model=own_cli_module.OwnNet", "--data=own_cli_module.OwnData", f"--ckpt_path={checkpoint}"]
    assert main(["test", *LOGGED, "--import", "own_cli_module", *evaluated]) == 0

    options = ["--model", "own_cli_module.OwnNet"]
    for inputs in (["--input-shape", "3"], ["--data", "own_cli_module.OwnData"]):
        assert main(["export", checkpoint, "-o", "own.onnx", *options, *inputs]) == 0
        assert "parity passed" in capsys.readouterr().out
    model = sys.modules["own_cli_module"].OwnNet.load_from_checkpoint(checkpoint, weights_only=True).eval()
    assert model.hparams["activation"] == "wavy(amount=0.25)"
    rows = torch.randn(5, 3)
    assert torch.allclose(OnnxPredictor("own.onnx")(rows), model(rows), atol=1e-5)

    assert main(["parity", "own.onnx", "--ckpt", checkpoint, *options, "--data", "own_cli_module.OwnData"]) == 0
    assert main(["parity", "own.onnx", "--ckpt", checkpoint, *options, "--input-shape", "3"]) == 0
    quick = ["--seconds", "0", "--no-compile", "--threads", "1", "--batch-sizes", "1"]
    assert main(["bench", "own.onnx", "--ckpt", checkpoint, *options, *quick, "--input-shape", "3"]) == 0
    figures = ["--quantities", "activations", "--json", "curvature.json"]
    assert main(["curvature", checkpoint, *options, "--data", "own_cli_module.OwnData", *figures]) == 0
    assert "functional.silu" in (tmp_path / "curvature.json").read_text() or "silu" in capsys.readouterr().out


def test_a_checkpoint_with_an_activation_that_a_module_of_ones_own_registers(tmp_path, capsys):
    """The module of the class does not register it, so that its own module has to be named."""
    registers, rest = MODULE.split("class OwnNet")[0], MODULE.replace("@activations.register", "# ")
    (tmp_path / "own_cli_module.py").write_text(rest)
    (tmp_path / "own_cli_act.py").write_text(registers)
    options = ["--model=own_cli_module.OwnNet", "--data=own_cli_module.OwnData"]
    with activations.registry.scope():
        quick = ["--model.activation=wavy", "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1"]
        assert main(["fit", *LOGGED, *options, *quick, "--import=own_cli_act"]) == 0
    sys.modules.pop("own_cli_act")
    (checkpoint,) = map(str, tmp_path.rglob("*.ckpt"))
    tested = ["test", f"--ckpt_path={checkpoint}", *LOGGED, "--trainer.limit_test_batches=1", *options]
    for arguments in (["export", checkpoint, *options, "-o", "own.onnx"], tested):
        capsys.readouterr()
        assert main(arguments) == 2
        assert "'wavy'" in capsys.readouterr().err
        with activations.registry.scope():
            assert main([*arguments, "--import=own_cli_act"]) == 0
        sys.modules.pop("own_cli_act")


def test_named_inputs_of_whole_numbers(tmp_path, capsys):
    arguments = ["own_cli_module.OwnTokens", "-o", "tokens.onnx"]
    assert main(["export", *arguments, "--input-shape", "ids=5:int64", "scale=5"]) == 0
    inputs = onnx.load("tokens.onnx").graph.input
    assert [entry.name for entry in inputs] == ["ids", "scale"]
    assert [entry.type.tensor_type.elem_type for entry in inputs] == [onnx.TensorProto.INT64, onnx.TensorProto.FLOAT]
    quick = ["--seconds", "0", "--batch-sizes", "3", "--json", "bench.json"]
    assert main(["bench", "tokens.onnx", *quick, "--input-shape", "ids=5:int64", "scale=5"]) == 0
    assert {row["batch_size"] for row in json.loads((tmp_path / "bench.json").read_text())["rows"]} == {3}


@pytest.mark.parametrize(
    "words",
    [
        "export own_cli_module.OwnNet",
        "export own_cli_module.OwnNet --input-shape 3 x=3",
        "export own_cli_module.OwnNet --input-shape 3x3",
        "export own_cli_module.OwnNet --input-shape 3:int3",
        "export own_cli_module.OwnNet --input-shape 3,8,8",
        "export own_cli_module.OwnNet --data DigitsData",
        "export own_cli_module.OwnTokens --data own_cli_module.OwnData",
        "export OwnNett --import own_cli_module",
    ],
)
def test_mistakes(words, capsys):
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("lit-gelu export: ")
    assert error.count("\n") == 1
