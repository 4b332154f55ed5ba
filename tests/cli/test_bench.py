"""``lit-gelu bench``: a table, a JSON file, and what is refused."""

import json
import sys
from types import ModuleType

import pytest
import torch
from export_cases import gelu_net
from lightning.pytorch import LightningModule

from lit_gelu.cli.main import main
from lit_gelu.export import export_onnx

QUICK = ["--seconds", "0", "--no-compile", "--threads", "1"]


class Net(LightningModule):
    def __init__(self, seed=0):
        super().__init__()
        self.net = gelu_net(seed=seed)
        self.example_input_array = torch.zeros(2, 6)

    def forward(self, x):
        return self.net(x)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "net.onnx"
    export_onnx(Net(), path)
    return path


@pytest.fixture
def checkpoint(path, monkeypatch):
    """Options for a checkpoint of a seed, its class in a module as a user's own would be."""
    module = ModuleType("bench_models")
    module.Net = Net
    monkeypatch.setitem(sys.modules, "bench_models", module)

    def of(seed):
        file = path.with_name(f"{seed}.ckpt")
        torch.save({"state_dict": Net(seed).state_dict(), "pytorch-lightning_version": "2.6.0"}, file)
        return ["--ckpt", str(file), "--model", "bench_models.Net"]

    return of


def test_beside_a_model(path, checkpoint, tmp_path, capsys):
    file = tmp_path / "bench.json"
    arguments = [str(path), *checkpoint(0), "--batch-sizes", "1", "3", *QUICK, "--json", str(file)]
    assert main(["bench", *arguments]) == 0
    assert "outputs differ" not in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["threads"] == 1
    assert [(row["batch_size"], row["variant"]) for row in report["rows"]] == [
        (size, variant) for size in (1, 3) for variant in ("torch eager", "onnxruntime")
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.onnx"],
        ["FILE", "--batch-sizes", "0"],
        ["FILE", "--threads", "-1"],
        ["FILE", "--model", "MNISTClassifier"],
        ["FILE", "--ckpt", "lit_gelu.tasks.MNISTClassifier"],  # whose weights are random
        ["FILE", "--providers", "CUDA"],
    ],
)
def test_mistakes_end_with_2(path, arguments, capsys):
    assert main(["bench", *[str(path) if word == "FILE" else word for word in arguments]]) == 2
    assert "Traceback" not in capsys.readouterr().err
