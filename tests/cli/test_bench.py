"""``lit-gelu bench``: a table, a JSON file, and what is refused."""

import json
import random

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


class RandomNet(Net):
    """The same with weights that are drawn anew each time."""

    def __init__(self):
        super().__init__()
        torch.nn.init.constant_(next(self.parameters()), random.random())  # torch's generator is seeded above


class OtherNet(Net):
    """The same with other weights."""

    def __init__(self):
        super().__init__(seed=1)


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
    """The class by a dotted path, as a user's own module would be."""
    import sys
    from types import ModuleType

    module = ModuleType("bench_models")
    module.Net, module.OtherNet, module.RandomNet = Net, OtherNet, RandomNet
    monkeypatch.setitem(sys.modules, "bench_models", module)


@pytest.mark.parametrize("option", ["--batch_sizes", "--batch-sizes"])
def test_beside_a_model(path, tmp_path, capsys, option):
    file = tmp_path / "bench.json"
    arguments = [str(path), "--ckpt", "bench_models.Net", option, "1", "3", *QUICK, "--json", str(file)]
    assert main(["bench", *arguments]) == 0
    output = capsys.readouterr().out
    assert "1 threads" in " ".join(output.split())  # the line is wrapped at the terminal's width
    for word in ("torch eager", "onnxruntime", "p50 ms", "p90 ms", "p99 ms", "rows/s"):
        assert word in output
    assert "outputs differ" not in output
    report = json.loads(file.read_text())
    assert [(row["batch_size"], row["variant"]) for row in report["rows"]] == [
        (size, variant) for size in (1, 3) for variant in ("torch eager", "onnxruntime")
    ]
    assert all(row["latency"]["p50"] <= row["latency"]["p90"] <= row["latency"]["p99"] for row in report["rows"])


def test_tuned_first(path, capsys):
    assert main(["bench", str(path), "--batch-sizes", "2", *QUICK, "--tune"]) == 0
    assert "of the untuned time at batch 2" in capsys.readouterr().out
    assert path.with_name("net.onnx.tuning.json").is_file()


def test_weights_that_are_not_the_files(path, capsys):
    arguments = [str(path), "--ckpt", "bench_models.OtherNet", "--batch-sizes", "1", *QUICK]
    assert main(["bench", *arguments]) == 0
    assert "the file is not of this model's weights, or wrong" in " ".join(capsys.readouterr().out.split())


def test_of_random_weights_only_times_are_compared(path, tmp_path, capsys, monkeypatch):
    tuned = []
    monkeypatch.setattr(OnnxPredictor, "tune", lambda self, *_, reference, **__: tuned.append(reference))
    file = tmp_path / "bench.json"
    arguments = [str(path), "--ckpt", "bench_models.RandomNet", "--batch-sizes", "1", *QUICK, "--json", str(file)]
    assert main(["bench", *arguments, "--tune"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "bench_models.RandomNet is a class, and its weights are random: its outputs are not compared" in said
    assert "the file is not of this model's weights" not in said
    errors = {row["variant"]: row["error"] for row in json.loads(file.read_text())["rows"]}
    assert errors["onnxruntime"] is None
    assert errors["torch eager"] < 1e-5
    assert tuned == [None]  # no settings are judged by such a model's outputs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx"], "There is no file 'missing.onnx'"),
        (["FILE", "--batch-sizes", "0"], "whole numbers from 1 on"),
        (["FILE", "--threads", "-1"], "whole numbers from 1 on"),
        (["FILE", "--preprocessing", "MNISTData"], "give --ckpt too"),
        (["FILE", "--providers", "CUDA"], "Did you mean 'CUDAExecutionProvider'"),
    ],
)
def test_mistakes(path, arguments, message, capsys):
    assert main(["bench", *[str(path) if word == "FILE" else word for word in arguments]]) == 2
    assert message in capsys.readouterr().err


def test_on_the_data_of_a_folder(path, monkeypatch):
    made = []
    monkeypatch.setattr("lit_gelu.cli.loading.load_data", lambda name, root: made.append((name, root)) or Rows())
    options = ["--data", "DigitsData", "--data-root", "folder", *QUICK]
    assert main(["bench", str(path), "--ckpt", "bench_models.Net", *options]) == 0
    assert made == [("DigitsData", "folder")] * 2  # for the model's sample, and for what is measured
