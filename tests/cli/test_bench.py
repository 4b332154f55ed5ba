"""``lit-gelu bench``: a table, a JSON file, and what is refused."""

import json
import random
import sys
from types import ModuleType

import pytest
import torch
from export_cases import gelu_net
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.cli.main import main
from lit_gelu.export import OnnxPredictor, export_onnx

QUICK = ["--seconds", "0", "--no-compile", "--threads", "1"]


class Net(LightningModule):
    """A module whose weights are always the same, so that its class is as good as a checkpoint."""

    def __init__(self, seed=0):
        super().__init__()
        self.net = gelu_net(seed=seed)
        self.example_input_array = torch.zeros(2, 6)

    def forward(self, x):
        return self.net(x)


class OtherNet(Net):
    def __init__(self):
        super().__init__(seed=1)


class RandomNet(Net):
    """The same with weights that are drawn anew each time."""

    def __init__(self):
        super().__init__()
        torch.nn.init.constant_(next(self.parameters()), random.random())  # torch's generator is seeded above


class Rows(LightningDataModule):
    """What the net takes, and labels."""

    def test_dataloader(self):
        return DataLoader(TensorDataset(torch.zeros(4, 6), torch.zeros(4)), batch_size=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "net.onnx"
    export_onnx(Net(), path)
    return path


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The classes by dotted paths, as a user's own module would have them."""
    module = ModuleType("bench_models")
    module.Net, module.OtherNet, module.RandomNet = Net, OtherNet, RandomNet
    monkeypatch.setitem(sys.modules, "bench_models", module)


def test_beside_a_model(path, tmp_path, capsys):
    file = tmp_path / "bench.json"
    arguments = [str(path), "--ckpt", "bench_models.Net", "--batch-sizes", "1", "3", *QUICK, "--json", str(file)]
    assert main(["bench", *arguments]) == 0
    assert "outputs differ" not in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["threads"] == 1
    assert [(row["batch_size"], row["variant"]) for row in report["rows"]] == [
        (size, variant) for size in (1, 3) for variant in ("torch eager", "onnxruntime")
    ]


def test_tuned_first(path):
    assert main(["bench", str(path), "--batch-sizes", "2", *QUICK, "--tune"]) == 0
    assert path.with_name("net.onnx.tuning.json").is_file()


def test_weights_that_are_not_the_files_are_said(path, capsys):
    assert main(["bench", str(path), "--ckpt", "bench_models.OtherNet", "--batch-sizes", "1", *QUICK]) == 0
    assert "not of this model's weights" in " ".join(capsys.readouterr().out.split())


def test_of_random_weights_only_times_are_compared(path, tmp_path, capsys, monkeypatch):
    tuned = []
    monkeypatch.setattr(OnnxPredictor, "tune", lambda self, *_, reference, **__: tuned.append(reference))
    file = tmp_path / "bench.json"
    arguments = [str(path), "--ckpt", "bench_models.RandomNet", "--batch-sizes", "1", *QUICK, "--json", str(file)]
    assert main(["bench", *arguments, "--tune"]) == 0
    assert "not of this model's weights" not in " ".join(capsys.readouterr().out.split())
    errors = {row["variant"]: row["error"] for row in json.loads(file.read_text())["rows"]}
    assert (errors["onnxruntime"], errors["torch eager"] < 1e-5) == (None, True)
    assert tuned == [None]  # no settings are judged by such a model's outputs


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.onnx"],
        ["FILE", "--batch-sizes", "0"],
        ["FILE", "--threads", "-1"],
        ["FILE", "--preprocessing", "MNISTData"],
        ["FILE", "--providers", "CUDA"],
    ],
)
def test_mistakes_end_with_2(path, arguments, capsys):
    assert main(["bench", *[str(path) if word == "FILE" else word for word in arguments]]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_on_the_data_of_a_folder(path, monkeypatch):
    made = []
    monkeypatch.setattr("lit_gelu.cli.loading.load_data", lambda name, root: made.append((name, root)) or Rows())
    options = ["--data", "DigitsData", "--data-root", "folder", *QUICK]
    assert main(["bench", str(path), "--ckpt", "bench_models.Net", *options]) == 0
    assert set(made) == {("DigitsData", "folder")}
