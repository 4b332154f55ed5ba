"""``lit-gelu export --int8``, and ``lit-gelu parity`` and ``bench`` on what it writes."""

import json

import onnx
import pytest
import torch
from lightning.pytorch import Trainer
from onnx import numpy_helper

from lit_gelu.cli.main import main
from lit_gelu.data import DigitsData
from lit_gelu.export import OnnxPredictor
from lit_gelu.tasks import MNISTClassifier

DATA = ["--data", "DigitsData"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier trained for two epochs, exported with its int8 file."""
    folder = tmp_path_factory.mktemp("int8")
    torch.manual_seed(0)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **options)
    trainer.fit(MNISTClassifier(activation="gelu", hidden_layers=1), datamodule=DigitsData())
    trainer.save_checkpoint(folder / "last.ckpt")
    arguments = ["-o", str(folder / "net.onnx"), "--int8", *DATA, "--calibration-samples", "300"]
    assert main(["export", str(folder / "last.ckpt"), *arguments]) == 0
    return folder


def parity(folder, name, *options):
    return main(["parity", str(folder / name), "--ckpt", str(folder / "last.ckpt"), *options])


def test_both_files_carry_their_own_proof(folder):
    files = [OnnxPredictor(folder / name).metadata for name in ("net.onnx", "net-int8.onnx")]
    plain, int8 = (json.loads(metadata["lit_gelu.parity"]) for metadata in files)
    assert plain["max_relative_error"] < 1e-5
    assert int8["passed"] is True
    assert {metric["name"] for metric in int8["metrics"]} >= {"test_error"}
    assert json.loads(files[1]["lit_gelu_int8"])["rows"] >= 300


def test_parity_judges_an_int8_file_by_its_task(folder, tmp_path, capsys):
    report = tmp_path / "int8.json"
    assert parity(folder, "net-int8.onnx", *DATA, "--min-top1", "0.95", "--json", str(report)) == 0
    assert capsys.readouterr().out.rstrip().endswith("passed")
    assert [one["passed"] for one in json.loads(report.read_text())["criteria"]] == [True, True]


def test_a_breach_is_exit_code_1(folder):
    assert parity(folder, "net-int8.onnx", *DATA, "--min-top1", "1.01") == 1
    model = onnx.load(folder / "net-int8.onnx")
    (tensor,) = [t for t in model.graph.initializer if t.name == "output.weight_quantized"]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[::-1].copy(), tensor.name))
    onnx.save(model, folder / "wrong.onnx")
    assert parity(folder, "wrong.onnx", *DATA) == 1


def test_layers_in_float_and_forms_of_gelu(folder, tmp_path):
    arguments = ["-o", str(tmp_path / "net.onnx"), "--approximate", "none", "tanh", "--float-layers", "output"]
    assert main(["export", str(folder / "last.ckpt"), *arguments, "--int8", *DATA, "--no-check"]) == 0
    names = {f"net-{form}{kind}.onnx" for form in ("none", "tanh") for kind in ("", "-int8")}
    assert {path.name for path in tmp_path.iterdir()} == names
    record = json.loads(OnnxPredictor(tmp_path / "net-tanh-int8.onnx").metadata["lit_gelu_int8"])
    assert record["float_layers"] == ["output"]


def test_raw_pixels_of_the_training_data(folder, tmp_path):
    arguments = ["-o", str(tmp_path / "net.onnx"), "--preprocessing", "DigitsData", "--int8", *DATA]
    assert main(["export", str(folder / "last.ckpt"), *arguments]) == 0
    assert OnnxPredictor(tmp_path / "net-int8.onnx")(DigitsData().raw_test_inputs()).shape == (360, 10)


def test_bench_does_not_call_an_int8_file_wrong(folder, capsys):
    arguments = ["--ckpt", str(folder / "last.ckpt"), "--no-compile", "--seconds", "0", "--batch-sizes", "8"]
    assert main(["bench", str(folder / "net-int8.onnx"), *arguments]) == 0
    assert "not of this model's weights" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--int8"],
        ["--int8", *DATA, "--dtype", "fp16"],
        ["--float-layers", "output"],
        ["--int8", *DATA, "--calibration", "minmix"],
        ["--int8", *DATA, "--float-layers", "head", "--no-check"],
    ],
)
def test_mistakes_in_export_end_with_2(folder, tmp_path, arguments, capsys):
    assert main(["export", str(folder / "last.ckpt"), "-o", str(tmp_path / "net.onnx"), *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options"),
    [("net-int8.onnx", [*DATA, "--html", "page.html"]), ("net-int8.onnx", []), ("net.onnx", ["--min-top1", "0.9"])],
)
def test_mistakes_in_parity_end_with_2(folder, name, options, capsys):
    assert parity(folder, name, *options) == 2
    assert "Traceback" not in capsys.readouterr().err
