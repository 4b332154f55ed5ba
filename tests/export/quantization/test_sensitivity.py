"""Layers that stay in float32 because int8 costs too much there."""

import pytest
import torch
from torch import nn

from lit_gelu.export import ExportOptionError, OnnxPredictor, export_onnx
from lit_gelu.export.quantization import quantize_onnx


@pytest.fixture(scope="module")
def outlier(tmp_path_factory):
    """A net whose second layer sees one input a thousand times as large as the others, with no use for it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 6))
    with torch.no_grad():
        net[0].weight[0] *= 1000
        net[2].weight[:, 0] = 0
    path = tmp_path_factory.mktemp("outlier") / "net.onnx"
    export_onnx(net, path, torch.zeros(2, 16))
    return net, path, torch.randn(300, 16)


def test_the_layer_with_the_outlier_is_left_in_float(outlier, tmp_path):
    net, path, x = outlier
    plain = quantize_onnx(path, tmp_path / "all.onnx", x)
    assert plain.record.difference > 0.1
    assert plain.record.layers == ("0", "2", "4")
    result = quantize_onnx(path, tmp_path / "kept.onnx", x, max_difference=0.05)
    assert result.record.float_layers == ("2",)
    assert result.costs[0].layer == "2"
    assert result.costs[0].sqnr < min(cost.sqnr for cost in result.costs[1:]) - 10
    assert "costliest layers, each alone in int8: 2 " in str(result)
    with torch.no_grad():
        classes = net.eval()(x).argmax(1)
    share = float((OnnxPredictor(tmp_path / "kept.onnx")(x).argmax(1) != classes).float().mean())
    assert share == pytest.approx(result.record.difference, abs=1e-6)
    assert share <= 0.05


def test_a_limit_that_cannot_be_met_writes_nothing(outlier, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 1), nn.GELU(), nn.Linear(1, 1))  # no logits: the root mean square decides
    export_onnx(net, tmp_path / "net.onnx", torch.zeros(2, 16))
    with pytest.raises(ExportOptionError, match=r"max_difference=0 cannot be met: even .* alone"):
        quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", torch.randn(50, 16), max_difference=0.0)
    assert not (tmp_path / "int8.onnx").exists()


def test_nothing_is_measured_where_all_layers_together_are_good_enough(outlier, tmp_path):
    _, path, x = outlier
    result = quantize_onnx(path, tmp_path / "net.onnx", x, max_difference=1.0)
    assert result.costs == ()
    assert result.record.float_layers == ()
