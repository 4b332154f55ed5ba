"""``lit-gelu demo``: the whole way through, on real digits."""

import json

import numpy as np
import pytest

from lit_gelu.cli.main import main
from lit_gelu.data import DigitsData
from lit_gelu.export import OnnxPredictor


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    code = main(["demo", "--output", str(folder), "--epochs", "4"])
    return folder, code


def test_it_leaves_what_it_promises(demo):
    folder, code = demo
    assert code == 0
    assert {path.name for path in folder.iterdir()} == {
        *(f"gelu_{form}.{suffix}" for form in ("exact", "tanh", "sigmoid") for suffix in ("onnx", "html", "json")),
        "report.html",
        "logs",
    }


def test_the_reports_say_what_the_files_do(demo):
    folder, _ = demo
    data = DigitsData(batch_size=360)
    data.setup("test")
    images, labels = next(iter(data.test_dataloader()))
    for form in ("exact", "tanh", "sigmoid"):
        report = json.loads((folder / f"gelu_{form}.json").read_text())
        assert report["passed"]
        rows = {row["comparison"]: row["max_abs_error"] for row in report["rows"] if row["inputs"] == "data"}
        assert rows["file vs PyTorch float64"] < 1e-4
        assert (rows["approximation gap: file vs module as trained"] < 1e-4) == (form == "exact")
        predictor = OnnxPredictor(folder / f"gelu_{form}.onnx")
        assert json.loads(predictor.metadata["lit_gelu.parity"])["passed"]  # the file carries its proof
        logits = predictor(images.numpy())
        test_error = np.mean(logits.argmax(-1) != labels.numpy())
        (metric,) = [metric for metric in report["metrics"] if metric["name"] == "test_error"]
        assert metric["file"] == pytest.approx(test_error)
        assert test_error < 0.5  # four epochs learn something


@pytest.mark.parametrize("words", ["--epochs 1", "--seed -1", "--seed 4294967296"])
def test_what_is_refused_leaves_nothing(words, capsys, tmp_path):
    assert main(["demo", *words.split(), "--output", str(tmp_path / "demo")]) == 2
    assert not (tmp_path / "demo").exists()
