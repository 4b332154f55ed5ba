"""``lit-gelu curvature``: its figures against the full Hessian and numpy, its files, and what is refused."""

import json
import sys

import numpy as np
import pytest
import torch
from cli_helpers import save_untrained
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.cli.main import main


class Net(LightningModule):
    """30 parameters in float64, so that the whole Hessian can be had; its dropout shows which mode it ran in."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.5), nn.Linear(4, 2), nn.ReLU()).double()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss


class Data(LightningDataModule):
    """40 examples in uneven batches."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(40, 4, generator=generator, dtype=torch.float64)
        self.examples = TensorDataset(x, torch.randint(2, (40,), generator=generator))

    def train_dataloader(self):
        return DataLoader(self.examples, batch_size=16)


class Counted(Data):
    """Batches that are no tensors."""

    def train_dataloader(self):
        return DataLoader(["a", "b"], batch_size=2)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The classes by a dotted path, as a user's own module would be."""
    from types import ModuleType

    module = ModuleType("curvature_models")
    module.Net, module.Data, module.Counted = Net, Data, Counted
    monkeypatch.setitem(sys.modules, "curvature_models", module)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("curvature") / "last.ckpt"
    save_untrained(path, hidden_layers=1)
    return path


def full_hessian(model, x, y):
    """The Hessian of the mean loss in evaluation mode, by torch.func."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    sizes = [p.numel() for p in parameters.values()]

    def loss(flat):
        pieces = zip(parameters.items(), flat.split(sizes), strict=True)
        return nn.functional.cross_entropy(
            torch.func.functional_call(model, {name: part.view_as(p) for (name, p), part in pieces}, (x,)), y
        )

    return torch.func.jacrev(torch.func.grad(loss))(torch.cat([p.flatten() for p in parameters.values()])), sizes


def measured(tmp_path, *arguments):
    path = tmp_path / "curvature.json"
    assert main(["curvature", *arguments, "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_figures_are_those_of_the_whole_hessian(tmp_path, capsys):
    arguments = ["curvature_models.Net", "--data", "curvature_models.Data", "--samples", "40"]
    report = measured(tmp_path, *arguments)
    model, (x, y) = Net().eval(), Data().examples.tensors
    hessian, sizes = full_hessian(model, x, y)
    values = torch.linalg.eigvalsh(hessian)
    eigenvalues = report["eigenvalues"]
    assert eigenvalues["top_eigenvalue"]["value"] == pytest.approx(values[-1].item(), rel=1e-8)
    assert eigenvalues["smallest_eigenvalue"]["value"] == pytest.approx(values[0].item(), rel=1e-8)
    trace = report["trace"]
    assert abs(trace["trace"] - values.sum().item()) < 4 * trace["standard_error"] + 1e-9
    assert sum(trace["by_layer"].values()) == pytest.approx(trace["trace"])
    weights = np.array(report["spectral_density"]["weights"])
    assert weights.sum() == pytest.approx(1)
    assert report["probe_loss"] == pytest.approx(nn.functional.cross_entropy(model(x), y).item())
    assert report["parameters"] == sum(sizes) == len(values)
    assert report["samples"] == 40
    output = capsys.readouterr().out
    assert "top eigenvalue" in output
    assert "net.3" in output  # in the table of the trace


def test_json_on_standard_output_is_alone_and_underscores_are_accepted(capsys):
    words = ["curvature_models.Net", "--data", "curvature_models.Data", "--samples", "40"]
    options = ["--input_shape", "4:float64", "--quantities", "activations", "top_eigenvalue"]
    assert main(["curvature", *words, *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["settings"]["samples"] == 40
    assert report["activations"].keys() == {"net.1", "net.4"}


def test_a_checkpoint_on_the_bundled_digits_with_a_figure(checkpoint, tmp_path, capsys):
    report = measured(
        tmp_path, str(checkpoint), "--data", "DigitsData", "--samples", "48", "--figure", str(tmp_path / "out.png")
    )
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    assert "MNISTClassifier on 48 examples" in output
    assert "hidden.0.activation" in output
    assert report["activations"].keys() == {"hidden.0.activation"}


@pytest.mark.parametrize(
    "words",
    [
        "missing.ckpt --data DigitsData",
        "CKPT --data DigitsData --samples 1",
        "CKPT --data DigitsData --quantities trase",
        "CKPT",
        "CKPT --data DigitsData --figure out.docx",
        "curvature_models.Net --data curvature_models.Data --split test",
        "curvature_models.Net --data curvature_models.Counted",
    ],
)
def test_mistakes(checkpoint, tmp_path, words, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["curvature", *words.replace("CKPT", str(checkpoint)).split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lit-gelu curvature: ")
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []
