"""``lit-gelu parity``."""

import json

import numpy as np
import pytest
from cli_helpers import save_untrained

from lit_gelu.cli.main import main
from lit_gelu.export import OnnxPredictor, export_onnx


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    model = save_untrained(folder / "last.ckpt", hidden_layers=1)
    save_untrained(folder / "other.ckpt", seed=1, hidden_layers=1)
    export_onnx(model, folder / "net.onnx", approximate="tanh")
    return folder


def test_a_good_file_passes_on_the_bundled_digits(files, tmp_path, capsys):
    report = tmp_path / "parity.json"
    pages = ["--markdown", str(tmp_path / "report.md"), "--html", str(tmp_path / "report.html")]
    arguments = [str(files / "net.onnx"), "--ckpt", str(files / "last.ckpt"), "--data", "DigitsData"]
    assert main(["parity", *arguments, "--json", str(report), *pages]) == 0
    assert capsys.readouterr().out.rstrip().endswith("passed")
    plain = json.loads(report.read_text())
    assert plain["passed"]
    assert plain["approximate"] == "tanh"
    data = [row for row in plain["rows"] if row["inputs"] == "data"]
    assert len(data) == 2  # PyTorch in float64, the gap
    assert {metric["name"] for metric in plain["metrics"]} >= {"test_loss", "test_error"}
    assert min(row["count"] for row in data) > 100
    assert (tmp_path / "report.md").read_text().startswith("# Parity of")
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_file_that_takes_raw_pixels_is_compared_on_the_data_modules_own(files, tmp_path):
    path, report = tmp_path / "raw.onnx", tmp_path / "parity.json"
    assert main(["export", str(files / "last.ckpt"), "-o", str(path), "--preprocessing", "DigitsData"]) == 0
    assert OnnxPredictor(path)(np.zeros((2, 1, 8, 8), np.uint8)).shape == (2, 10)
    arguments = [str(path), "--ckpt", str(files / "last.ckpt"), "--json", str(report)]
    assert main(["parity", *arguments, "--data", "DigitsData"]) == 0
    plain = json.loads(report.read_text())
    assert plain["passed"]
    assert {row["count"] for row in plain["rows"] if row["inputs"] == "data"} == {360}
    assert main(["parity", *arguments, "--data", "MNISTData", "--data-root", str(tmp_path)]) == 2
    assert main(["parity", *arguments]) == 2


def test_a_breach_is_exit_code_1(files, capsys):
    assert main(["parity", str(files / "net.onnx"), "--ckpt", str(files / "other.ckpt")]) == 1
    assert capsys.readouterr().out.rstrip().endswith("FAILED")


@pytest.mark.parametrize(
    "words",
    [
        "none.onnx --ckpt last.ckpt",
        "net.onnx --ckpt none.ckpt",
        "net.onnx --ckpt last.ckpt --data DigitData",
        "net.onnx --ckpt last.ckpt --providers GPU",
        "net.onnx --ckpt last.ckpt --swap activation:gelu=silu",
        "net.onnx --ckpt lit_gelu.tasks.MNISTClassifier",
        "net.onnx",
    ],
)
def test_mistakes_are_exit_code_2(files, words, capsys, monkeypatch):
    monkeypatch.chdir(files)
    assert main(["parity", *words.split()]) == 2
    assert capsys.readouterr().err.startswith("lit-gelu parity: ")
