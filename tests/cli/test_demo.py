"""``lit-gelu demo``: the whole way through, on real digits."""

import json

import numpy as np
import onnx
import pytest

from lit_gelu.cli.demo import draw_training
from lit_gelu.cli.main import main
from lit_gelu.data import DigitsData
from lit_gelu.export import OnnxPredictor
from lit_gelu.report.sources import read_metrics_csv


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
        "training.png",
    }
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "training.png").stat().st_size > 20_000


def test_each_file_has_its_own_form_of_gelu(demo):
    folder, _ = demo
    forms = {}
    for name in ("exact", "tanh", "sigmoid"):
        nodes = onnx.load(folder / f"gelu_{name}.onnx").graph.node
        forms[name] = [
            {attribute.name: attribute.s.decode() for attribute in node.attribute}.get("approximate", "none")
            for node in nodes
            if node.op_type == "Gelu"
        ]
    assert forms == {"exact": ["none"] * 8, "tanh": ["tanh"] * 8, "sigmoid": []}


def logged(folder):
    (path,) = folder.glob("logs/*/metrics.csv")
    return {curve.name: curve for curve in read_metrics_csv(path)}


def test_the_plot_has_a_legend_a_gap_and_the_kinks(demo):
    folder, _ = demo
    log, swap_step = logged(folder), 2 * 39
    figure = draw_training(log, swap_step)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"layer {number}" for number in range(1, 9)]
    for axes in figure.axes:
        labels = [text for text in axes.texts if text.get_text().strip() in {"ReLU", "GELU"}]
        assert len(labels) == 2
        assert all(text.get_position()[1] > 1 and text.get_va() == "bottom" for text in labels)  # above the frame
    for axes in figure.axes[2:]:
        lines = [line for line in axes.get_lines() if len(line.get_xdata()) and line.get_linestyle() == "-"]
        assert len(lines) == 16
        assert all(max(line.get_xdata()) < swap_step or min(line.get_xdata()) >= swap_step for line in lines)
    (curved,) = [axes for axes in figure.axes if "f''" in axes.get_title(loc="left")]
    for line, number in zip(curved.get_lines()[:16:2], range(8), strict=True):  # ReLU's: the kinks are all of it
        kinks = log[f"curvature/hidden.{number}.activation/kink_mass"]
        before = [kink for step, kink in zip(kinks.steps, kinks.values, strict=True) if step < swap_step]
        assert list(line.get_ydata()) == before
        assert min(line.get_ydata()) > 0


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


def test_a_file_is_no_folder(capsys, tmp_path):
    (tmp_path / "notes.txt").touch()
    for path in (tmp_path / "notes.txt", tmp_path / "notes.txt" / "demo"):
        assert main(["demo", "--output", str(path)]) == 2
        assert capsys.readouterr().err.startswith("lit-gelu demo: ")
