"""``lit-gelu parity``."""

import json

import pytest
import torch
from lightning.pytorch import Trainer

from lit_gelu.cli.main import main
from lit_gelu.export import export_onnx
from lit_gelu.tasks import MNISTClassifier


def write_checkpoint(path, seed):
    torch.manual_seed(seed)
    model = MNISTClassifier(activation="gelu", hidden_layers=1)
    trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    trainer.strategy.connect(model)
    trainer.save_checkpoint(path)
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    model = write_checkpoint(folder / "last.ckpt", seed=0)
    write_checkpoint(folder / "other.ckpt", seed=1)
    export_onnx(model, folder / "net.onnx", approximate="tanh")
    return folder


def test_a_good_file_passes_on_the_bundled_digits(files, tmp_path, capsys):
    report = tmp_path / "parity.json"
    arguments = [
        str(files / "net.onnx"),
        "--ckpt",
        str(files / "last.ckpt"),
        "--data",
        "DigitsData",
        "--json",
        str(report),
    ]
    assert main(["parity", *arguments]) == 0
    assert capsys.readouterr().out.rstrip().endswith("passed")
    plain = json.loads(report.read_text())
    assert plain["passed"]
    assert plain["approximate"] == "tanh"
    data = [row for row in plain["rows"] if row["inputs"] == "data"]
    assert len(data) == 3
    assert min(row["count"] for row in data) > 100


def test_a_breach_is_exit_code_1(files, capsys):
    assert main(["parity", str(files / "net.onnx"), "--ckpt", str(files / "other.ckpt")]) == 1
    assert capsys.readouterr().out.rstrip().endswith("FAILED")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.onnx", "--ckpt", "last.ckpt"], "There is no file"),
        (["last.ckpt", "--ckpt", "last.ckpt"], "it is damaged, no ONNX model"),
        (["net.onnx", "--ckpt", "none.ckpt"], "There is no checkpoint"),
        (["net.onnx", "--ckpt", "last.ckpt", "--data", "DigitData"], "one of lit_gelu.data: DigitsData, "),
        (["net.onnx", "--ckpt", "last.ckpt", "--providers", "GPU"], "Unknown execution provider 'GPU'"),
    ],
)
def test_mistakes_are_exit_code_2(files, arguments, message, capsys):
    paths = [str(files / word) if word.endswith(("onnx", "ckpt")) and word[0] != "-" else word for word in arguments]
    assert main(["parity", *paths]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("lit-gelu parity: ")
    assert message in captured.err


def test_a_missing_argument_is_exit_code_2(capsys):
    assert main(["parity", "net.onnx"]) == 2
    assert "ckpt" in capsys.readouterr().err


def test_help_has_examples_and_exit_codes(capsys):
    assert main(["parity", "--help"]) == 0
    output = capsys.readouterr().out
    assert "exit code: 0 if every comparison passed" in output
    assert "\n  lit-gelu parity model.onnx --ckpt last.ckpt --data DigitsData --json parity.json\n" in output
