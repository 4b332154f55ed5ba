"""``lit-gelu export --int8``, and ``lit-gelu parity`` on what it writes."""

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier trained for two epochs, exported with its int8 file."""
    folder = tmp_path_factory.mktemp("int8")
    torch.manual_seed(0)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **options)
    trainer.fit(MNISTClassifier(activation="gelu", hidden_layers=1), datamodule=DigitsData())
    trainer.save_checkpoint(folder / "last.ckpt")
    arguments = [
        "-o",
        str(folder / "net.onnx"),
        "--int8",
        "true",
        "--data",
        "DigitsData",
        "--calibration-samples",
        "300",
    ]
    assert main(["export", str(folder / "last.ckpt"), *arguments]) == 0
    return folder


def parity(folder, name, *options):
    arguments = [str(folder / name), "--ckpt", str(folder / "last.ckpt"), *options]
    return main(["parity", *arguments])


def test_both_files_carry_their_own_proof(folder):
    proofs = {
        name: json.loads(OnnxPredictor(folder / name).metadata["lit_gelu.parity"])
        for name in ("net.onnx", "net-int8.onnx")
    }
    assert proofs["net.onnx"]["max_relative_error"] < 1e-5
    assert proofs["net-int8.onnx"]["passed"] is True
    assert {metric["name"] for metric in proofs["net-int8.onnx"]["metrics"]} >= {"test_error"}
    record = json.loads(OnnxPredictor(folder / "net-int8.onnx").metadata["lit_gelu_int8"])
    assert record["rows"] == 300


def test_parity_judges_an_int8_file_by_its_task(folder, tmp_path, capsys):
    report = tmp_path / "int8.json"
    options = ["--data", "DigitsData", "--min-top1", "0.95", "--json", str(report)]
    assert parity(folder, "net-int8.onnx", *options, "--markdown", str(tmp_path / "int8.md")) == 0
    assert capsys.readouterr().out.rstrip().endswith("passed")
    plain = json.loads(report.read_text())
    assert [one["name"] for one in plain["criteria"]] == ["test_error, increase", "top-1 agreement"]
    assert (tmp_path / "int8.md").read_text().startswith("# int8 parity of")


def test_a_breach_is_exit_code_1(folder, capsys):
    assert parity(folder, "net-int8.onnx", "--data", "DigitsData", "--min-top1", "1.01") == 1
    assert capsys.readouterr().out.rstrip().endswith("FAILED")
    model = onnx.load(folder / "net-int8.onnx")
    (tensor,) = [t for t in model.graph.initializer if t.name == "output.weight_quantized"]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[::-1].copy(), tensor.name))
    onnx.save(model, folder / "wrong.onnx")
    assert parity(folder, "wrong.onnx", "--data", "DigitsData") == 1


def test_layers_in_float_and_forms_of_gelu(folder, tmp_path, capsys):
    arguments = ["-o", str(tmp_path / "net.onnx"), "--approximate", "none", "tanh", "--float-layers", "output"]
    data = ["--int8", "--data", "DigitsData", "--no-check"]
    assert main(["export", str(folder / "last.ckpt"), *arguments, *data]) == 0
    names = {f"net-{form}{kind}.onnx" for form in ("none", "tanh") for kind in ("", "-int8")}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert "1 layer in int8, 1 in float32 (output)" in capsys.readouterr().out


def test_raw_pixels_of_the_training_data(folder, tmp_path):
    arguments = ["-o", str(tmp_path / "net.onnx"), "--preprocessing", "DigitsData", "--no-check"]
    assert main(["export", str(folder / "last.ckpt"), *arguments, "--int8", "--data", "DigitsData"]) == 0
    assert OnnxPredictor(tmp_path / "net-int8.onnx")(DigitsData().raw_test_inputs()).shape == (360, 10)


def test_bench_does_not_call_an_int8_file_wrong(folder, capsys):
    arguments = ["--ckpt", str(folder / "last.ckpt"), "--no-compile", "--seconds", "0", "--batch-sizes", "8"]
    assert main(["bench", str(folder / "net-int8.onnx"), *arguments]) == 0
    assert "not of this model's weights" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--int8"], "name a data module, such as --data MNISTData"),
        (["--int8", "--data", "DigitsData", "--dtype", "fp16"], "leave out --dtype fp16"),
        (["--float-layers", "output"], "--float-layers is of --int8"),
        (["--int8", "--data", "DigitsData", "--calibration", "minmix"], "invalid choice: 'minmix'"),
        (["--int8", "--data", "DigitsData", "--float-layers", "head"], "'head' fits no layer"),
    ],
)
def test_mistakes_in_export(folder, tmp_path, arguments, message, capsys):
    assert main(["export", str(folder / "last.ckpt"), "-o", str(tmp_path / "net.onnx"), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("net-int8.onnx", ["--data", "DigitsData", "--html", "page.html"], "--html was given"),
        ("net-int8.onnx", [], "int8 is compared on data only"),
        ("net.onnx", ["--min-top1", "0.9"], "--min-top1 was given"),
    ],
)
def test_mistakes_in_parity(folder, name, options, message, capsys):
    assert parity(folder, name, *options) == 2
    assert message in capsys.readouterr().err
