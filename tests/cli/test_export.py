"""``lit-gelu export``."""

import json

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from lit_gelu.cli.main import main
from lit_gelu.export import OnnxPredictor
from lit_gelu.tasks import MNISTClassifier


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint as Lightning writes it, without training; it does not record its class."""
    folder = tmp_path_factory.mktemp("checkpoint")
    trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    trainer.strategy.connect(MNISTClassifier(activation="gelu(approximate='tanh')", hidden_layers=2))
    trainer.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt"


def test_a_checkpoint_becomes_a_file_beside_it(checkpoint, capsys):
    assert main(["export", str(checkpoint)]) == 0
    output = capsys.readouterr().out
    assert "hidden.1.activation: gelu(approximate='tanh') -> Gelu (native, 1 call)" in output
    assert "parity passed" in output
    model = MNISTClassifier.load_from_checkpoint(checkpoint, map_location="cpu", weights_only=True).eval()
    images = torch.rand(3, 1, 28, 28)
    logits = OnnxPredictor(checkpoint.with_suffix(".onnx"))(images)
    assert torch.allclose(logits, model(images), atol=1e-5)


def test_several_forms_write_a_file_each(checkpoint, tmp_path, capsys):
    arguments = ["-o", str(tmp_path / "net.onnx"), "--approximate", "none", "sigmoid", "--lowering", "contrib"]
    assert main(["export", str(checkpoint), *arguments]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net-none.onnx", "net-sigmoid.onnx"]
    assert OnnxPredictor(tmp_path / "net-sigmoid.onnx").metadata["lit_gelu.approximate"] == "sigmoid"
    assert capsys.readouterr().out.count("parity passed") == 2


def test_preprocessing_becomes_a_part_of_the_file(checkpoint, tmp_path, capsys):
    path = tmp_path / "raw.onnx"
    assert main(["export", str(checkpoint), "-o", str(path), "--preprocessing", "MNISTData"]) == 0
    output = capsys.readouterr().out
    assert "takes raw pixels (uint8): lit_gelu.data.mnist.UnitPixels" in output
    assert "parity passed" in output
    model = MNISTClassifier.load_from_checkpoint(checkpoint, map_location="cpu", weights_only=True).eval()
    pixels = torch.randint(0, 256, (3, 1, 28, 28), dtype=torch.uint8)
    assert torch.allclose(OnnxPredictor(path)(pixels), model(pixels / 255), atol=1e-5)


class Pooled(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 1), torch.nn.GELU())
        self.example_input_array = torch.zeros(1, 1, 4, 4)

    def forward(self, x):
        return self.net(x).mean((2, 3))


@pytest.mark.parametrize("words", [["image-size"], ["x:2=height", "x:3=width"]])
def test_dynamic_sizes_by_preset_or_by_name(words, tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    monkeypatch.setattr("lit_gelu.tasks.Pooled", Pooled, raising=False)
    assert main(["export", "lit_gelu.tasks.Pooled", "-o", str(path), "--dynamic-shapes", *words]) == 0
    sizes = json.loads(OnnxPredictor(path).metadata["lit_gelu.dynamic_shapes"])
    assert sizes == {"x": {"2": "height", "3": "width"}}
    assert OnnxPredictor(path)(torch.zeros(2, 1, 5, 3)).shape == (2, 4)


@pytest.mark.parametrize(
    "words",
    [
        "CHECKPOINT --dynamic-shapes sizes",
        "CHECKPOINT --dynamic-shapes image:2=h",
        "CHECKPOINT --dynamic-shapes sequence",
        "nosuch.ckpt",
        "lit_gelu.tasks.Nope",
        "no/such/file",
        "lit_gelu.data.DigitsData",
        "CHECKPOINT --model no.such.Module",
        "CHECKPOINT --approximate tahn",
        "CHECKPOINT --approximate tanh tanh",
        "CHECKPOINT --lowering fused",
        "CHECKPOINT --target tensorrt --lowering contrib",
        "CHECKPOINT -o net.pt",
        "CHECKPOINT --preprocessing TweetData",
        "CHECKPOINT --preprocessing NoData",
        "CHECKPOINT --data-root data",
        "CHECKPOINT --preprocessing DigitsData --data-root data",
    ],
)
def test_mistakes_are_exit_code_2_and_leave_nothing(checkpoint, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *words.replace("CHECKPOINT", str(checkpoint)).split()]) == 2
    assert capsys.readouterr().err.startswith("lit-gelu export: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"no checkpoint", "list"])
def test_files_that_are_no_checkpoints(tmp_path, content, capsys):
    path = tmp_path / "bad.ckpt"
    if content == "list":
        torch.save([1, 2], path)
    else:
        path.write_bytes(content)
    assert main(["export", str(path)]) == 2
    assert "bad.ckpt" in capsys.readouterr().err
