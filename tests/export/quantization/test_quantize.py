"""`quantize_onnx`: what is kept of the float file, and what is refused."""

import json

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lit_gelu.data import DigitsData
from lit_gelu.export import (
    ExportOptionError,
    ModelFileError,
    ModelInputError,
    OnnxPredictor,
    check_parity,
    export_onnx,
    write_proof,
)
from lit_gelu.export.metadata import read_metadata
from lit_gelu.export.quantization import is_quantized, quantize_onnx
from lit_gelu.export.quantization.int8_metadata import read_record
from lit_gelu.files import UnwritablePathError


def test_batch_names_labels_and_activations_are_those_of_the_float_file(digits):
    predictor = OnnxPredictor(digits.int8)
    assert predictor.ports == OnnxPredictor(digits.path).ports
    assert predictor.output_ports == OnnxPredictor(digits.path).output_ports
    images = torch.rand(7, 1, 28, 28)
    assert torch.equal(predictor(images)[:1], predictor(images[:1]))
    before, after = (read_metadata(OnnxPredictor(path).metadata, "the file") for path in (digits.path, digits.int8))
    assert (before.dtype, after.dtype, after.io_dtype) == ("fp32", "int8", "fp32")
    assert (after.labels, after.sites, after.model_class) == (before.labels, before.sites, before.model_class)
    assert read_record(predictor.metadata, "it") == digits.result.record
    assert digits.result.record.layers == ("hidden.0.linear", "hidden.1.linear", "output")
    assert digits.result.record.rows == 512
    assert digits.result.nbytes == digits.int8.stat().st_size < 0.35 * digits.path.stat().st_size
    assert digits.result.census["Gelu"] == digits.result.quantized_census["Gelu"] == 2
    assert "3 layers in int8; uint8 activations" in str(digits.result)
    onnx.checker.check_model(str(digits.int8), full_check=True)


def test_the_same_seed_gives_the_same_bytes(digits, tmp_path):
    quantize_onnx(digits.path, tmp_path / "again.onnx", DigitsData())
    assert (tmp_path / "again.onnx").read_bytes() == digits.int8.read_bytes()


def test_the_proof_of_the_float_file_is_not_that_of_the_int8_file(digits, tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(digits.model, path, softmax=True)
    write_proof(check_parity(digits.model, path), path, [])
    assert json.loads(OnnxPredictor(path).metadata["lit_gelu.parity"])["passed"] is True
    path = quantize_onnx(path, tmp_path / "int8.onnx", DigitsData()).path
    assert json.loads(OnnxPredictor(path).metadata["lit_gelu.parity"]) == {}
    assert is_quantized(path)
    assert json.loads(OnnxPredictor(path).metadata["lit_gelu.softmax"]) is True
    chances = OnnxPredictor(path)(torch.rand(5, 1, 28, 28))
    assert torch.allclose(chances.sum(1), torch.ones(5), atol=1e-6)


def test_what_stays_in_float_is_as_exact_as_before(digits, tmp_path):
    result = quantize_onnx(digits.path, tmp_path / "net.onnx", DigitsData(), float_layers=["hidden.*"])
    assert result.record.layers == ("output",)
    assert result.record.float_layers == ("hidden.0.linear", "hidden.1.linear")
    names = {tensor.name for tensor in onnx.load(tmp_path / "net.onnx").graph.initializer}
    assert {"hidden.0.linear.weight", "hidden.1.linear.weight", "output.weight_quantized"} <= names


def broken_files(folder):
    net, sample = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.zeros(2, 8)
    export_onnx(net, folder / "half.onnx", sample, dtype="fp16")
    export_onnx(nn.GELU(), folder / "gelu.onnx", sample)
    export_onnx(net, folder / "net.onnx", sample)
    quantize_onnx(folder / "net.onnx", folder / "int8.onnx", torch.randn(8, 8))
    others = onnx.load(folder / "net.onnx")
    others.ClearField("metadata_props")
    onnx.save(others, folder / "others.onnx")
    beside = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save(onnx.load(folder / "net.onnx"), folder / "beside.onnx", **beside)
    (folder / "text.onnx").write_text("no model")


def test_what_cannot_be_quantised(tmp_path):
    broken_files(tmp_path)
    rows, target = torch.randn(8, 8), tmp_path / "out.onnx"
    cases = {
        "half.onnx": (ExportOptionError, "is in fp16"),
        "gelu.onnx": (ExportOptionError, "no operator that is quantised"),
        "int8.onnx": (ExportOptionError, "is quantised already"),
        "others.onnx": (ModelFileError, "does not carry lit-gelu's metadata"),
        "beside.onnx": (ModelFileError, "Save it with its weights inside"),
        "text.onnx": (ModelFileError, "no ONNX model"),
        "none.onnx": (ModelFileError, "There is no file"),
    }
    for name, (error, message) in cases.items():
        with pytest.raises(error, match=message):
            quantize_onnx(tmp_path / name, target, rows)
    with pytest.raises(ModelInputError, match="NaN"):
        quantize_onnx(tmp_path / "net.onnx", target, rows * np.nan)
    with pytest.raises(UnwritablePathError):
        quantize_onnx(tmp_path / "net.onnx", tmp_path, rows)
    with pytest.raises(ExportOptionError, match=r"'head' fits no layer. The file has: 0"):
        quantize_onnx(tmp_path / "net.onnx", target, rows, float_layers=["head"])
    assert not target.exists()


def test_a_path_that_cannot_be_written_is_refused_before_any_row_is_read(digits, tmp_path):
    read = []

    def rows():
        read.append(1)
        yield torch.zeros(2, 1, 28, 28)

    with pytest.raises(UnwritablePathError):
        quantize_onnx(digits.path, tmp_path, rows())
    assert read == []


def test_the_float_file_is_not_written_over_by_any_of_its_names(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, before = tmp_path / "net.onnx", digits.path.read_bytes()
    path.write_bytes(before)
    (tmp_path / "link.onnx").symlink_to(path)
    (tmp_path / "hard.onnx").hardlink_to(path)
    for name in ("net.onnx", "./net.onnx", path, f"{tmp_path}/../{tmp_path.name}/net.onnx", "link.onnx", "hard.onnx"):
        with pytest.raises(ExportOptionError, match=r"is the float32 file itself.*such as 'net-int8.onnx'"):
            quantize_onnx("net.onnx", name, DigitsData())
    assert path.read_bytes() == before


def test_a_failure_leaves_what_was_there(digits, tmp_path):
    target = tmp_path / "net.onnx"
    target.write_bytes(b"old")
    with pytest.raises(ModelInputError):
        quantize_onnx(digits.path, target, [])
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_weights_beside_the_file(digits, tmp_path, monkeypatch):
    from lit_gelu.export import metadata

    monkeypatch.setattr(metadata, "EXTERNAL_DATA_ABOVE", 1000)
    export_onnx(digits.model, tmp_path / "net.onnx")
    with pytest.raises(ModelFileError, match="keeps its weights in"):
        quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", DigitsData())
