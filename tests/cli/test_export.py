"""``lit-gelu export``."""

import pytest
import torch
from cli_helpers import save_untrained

from lit_gelu.cli.main import main
from lit_gelu.export import OnnxPredictor
from lit_gelu.tasks import MNISTClassifier


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "last.ckpt"
    save_untrained(path, "gelu(approximate='tanh')", hidden_layers=2)
    return path


def test_a_checkpoint_becomes_a_file_beside_it(checkpoint, capsys):
    assert main(["export", str(checkpoint)]) == 0
    output = capsys.readouterr().out
    assert "hidden.1.activation: gelu(approximate='tanh') -> Gelu (native, 1 call)" in output
    assert "parity passed" in output
    model = MNISTClassifier.load_from_checkpoint(checkpoint, map_location="cpu", weights_only=True).eval()
    images = torch.rand(3, 1, 28, 28)
    logits = OnnxPredictor(checkpoint.with_suffix(".onnx"))(images)
    assert torch.allclose(logits, model(images), atol=1e-5)


def test_a_form_and_a_lowering(checkpoint, tmp_path, capsys):
    path = tmp_path / "net.onnx"
    arguments = ["-o", str(path), "--approximate", "sigmoid", "--lowering", "contrib"]
    assert main(["export", str(checkpoint), *arguments]) == 0
    assert OnnxPredictor(path).metadata["lit_gelu.approximate"] == "sigmoid"
    assert capsys.readouterr().out.count("parity passed") == 1


@pytest.mark.parametrize(
    "words",
    [
        "CHECKPOINT --dynamic-shapes sizes",
        "CHECKPOINT --dynamic-shapes {image:{2:h}}",
        "nosuch.ckpt",
        "lit_gelu.tasks.Nope",
        "CHECKPOINT --model no.such.Module",
        "CHECKPOINT --approximate tahn",
        "CHECKPOINT --lowering fused",
        "CHECKPOINT --target tensorrt --lowering contrib",
        "CHECKPOINT -o net.pt",
        "CHECKPOINT --preprocessing TweetData",
        "CHECKPOINT --preprocessing DigitsData --data-root data",
    ],
)
def test_mistakes_are_exit_code_2_and_leave_nothing(checkpoint, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *words.replace("CHECKPOINT", str(checkpoint)).split()]) == 2
    assert capsys.readouterr().err.startswith("lit-gelu export: ")
    assert not list(tmp_path.iterdir())
