"""`write_proof`: reports beside the file, and in the file what they say."""

import hashlib
import json
import shutil
from pathlib import Path

import export_zoo
import onnx
import pytest
import torch
from export_cases import gelu_net

from lit_gelu.errors import ArgumentError
from lit_gelu.export import ModelFileError, OnnxPredictor, check_parity, export_onnx, metadata, write_proof

SAMPLE = torch.zeros(1, 6)


def test_weights_of_their_own_stay_and_the_record_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(metadata, "EXTERNAL_DATA_ABOVE", 1000)
    path = tmp_path / "net.onnx"
    export_onnx(gelu_net(), path, SAMPLE)
    (weights,) = set(tmp_path.iterdir()) - {path}
    content, graph = weights.read_bytes(), onnx.load(path, load_external_data=False).graph
    report = check_parity(gelu_net(), path, input_sample=SAMPLE)
    assert write_proof(report, path, []) == {}
    assert "report_sha256" not in json.loads(OnnxPredictor(path).metadata["lit_gelu.parity"])
    written = write_proof(report, path, ["json", "markdown"])
    assert {name: file.name for name, file in written.items()} == {
        "json": "net.parity.json",
        "markdown": "net.parity.md",
    }
    record = json.loads(OnnxPredictor(path).metadata["lit_gelu.parity"])
    assert record["report_sha256"] == hashlib.sha256(written["json"].read_bytes()).hexdigest()
    assert (record["passed"], record["provider"]) == (True, report.provider)
    assert record["max_relative_error"] == max(row.error for row in report.rows if row.gating and not row.extreme)
    assert json.loads(written["json"].read_text())["path"] == "net.onnx"
    assert weights.read_bytes() == content
    assert onnx.load(path, load_external_data=False).graph == graph
    assert check_parity(gelu_net(), path, input_sample=SAMPLE).passed


@pytest.fixture(scope="module")
def report():
    return check_parity(export_zoo.net("gelu"), export_zoo.exported("gelu")[1], input_sample=SAMPLE)


@pytest.fixture
def model_file(tmp_path):
    """A file of the exporter."""
    (tmp_path / "own").mkdir()
    return Path(shutil.copy(export_zoo.exported("gelu")[1], tmp_path / "own" / "own.onnx"))


def test_a_file_of_others_is_not_changed(tmp_path, model_file, report):
    path = tmp_path / "others.onnx"
    model = onnx.load(model_file)
    model.ClearField("metadata_props")
    onnx.save(model, path)
    before = path.read_bytes()
    with pytest.raises(ModelFileError):
        write_proof(report, path, [])
    assert path.read_bytes() == before
    with pytest.raises(ArgumentError):
        write_proof(report, model_file, ["pdf"])


def test_the_report_of_another_file_is_no_proof(tmp_path):
    for name in ("net.onnx", "other.onnx"):
        export_onnx(gelu_net(), tmp_path / name, SAMPLE)
    report, before = (
        check_parity(gelu_net(), tmp_path / "net.onnx", input_sample=SAMPLE),
        (tmp_path / name).read_bytes(),
    )
    with pytest.raises(ArgumentError):
        write_proof(report, tmp_path / name, ["json"])
    assert (tmp_path / name).read_bytes() == before
