"""Files that another program rewrote after the export: onnxruntime.transformers.optimizer."""

import logging
import warnings

import onnx
import pytest
import torch
from torch import nn

from lit_gelu.export import check_parity, export_onnx

SAMPLE = torch.zeros(2, 5, 6)


def optimized_by_onnxruntime(source, target):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnxruntime.transformers import optimizer

        logging.getLogger("onnxruntime").setLevel(logging.ERROR)
        model = optimizer.optimize_model(str(source), model_type="bert", num_heads=0, hidden_size=0, opt_level=0)
        model.save_model_to_file(str(target))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(approximate="tanh"), nn.Linear(16, 3))


def test_the_tanh_form_that_became_the_exact_one_fails_and_is_named(tmp_path, net):
    export_onnx(net, tmp_path / "net.onnx", SAMPLE)
    assert check_parity(net, tmp_path / "net.onnx", input_sample=SAMPLE).passed
    optimized_by_onnxruntime(tmp_path / "net.onnx", tmp_path / "rewritten.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "rewritten.onnx").graph.node][1] == "BiasGelu"
    report = check_parity(net, tmp_path / "rewritten.onnx", input_sample=SAMPLE, strict=False)
    assert not report.passed
    assert report.row("gaussian, batch 32").error > 1e-5
    assert report.culprit.kind == "file"
    assert report.divergence.layer.site == "1"
    assert report.divergence.nodes == ("MatMul(val_1)", "BiasGelu(0.bias)")
    (note,) = report.notes
    assert "rewrote the file after the export: the nodes of 1 (gelu(approximate='tanh')) are gone" in note
    assert note.endswith("BiasGelu came in.")


def test_the_exact_form_survives_it_and_the_change_is_said(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    export_onnx(net, tmp_path / "net.onnx", SAMPLE)
    optimized_by_onnxruntime(tmp_path / "net.onnx", tmp_path / "rewritten.onnx")
    report = check_parity(net, tmp_path / "rewritten.onnx", input_sample=SAMPLE)
    assert report.passed
    assert len(report.notes) == 1
