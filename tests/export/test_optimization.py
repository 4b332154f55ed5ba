"""onnxruntime's offline optimiser: what it fuses, and that no form of GELU is exchanged on the way."""

import onnx
import pytest
import torch
from onnxruntime.transformers import optimizer
from torch import nn

from lit_gelu.cli.main import main
from lit_gelu.errors import ArgumentError, ModelFileError
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.inspection import inspect_onnx
from lit_gelu.export.optimization import optimize_onnx
from lit_gelu.tasks import MNISTClassifier

X = torch.linspace(-4, 4, 48).reshape(2, 3, 8)


def feed_forward(approximate="none"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(approximate), nn.Linear(16, 8), nn.LayerNorm(8)).eval()


@pytest.fixture
def source(tmp_path):
    export_onnx(feed_forward(), tmp_path / "net.onnx", X)
    return tmp_path / "net.onnx"


def test_a_bias_is_fused_and_the_file_is_proved(source, tmp_path):
    result = optimize_onnx(source, tmp_path / "fused.onnx")
    assert result.fused == {"com.microsoft::BiasGelu": 1}
    assert result.nodes[1] == result.nodes[0] - 1
    assert check_parity(feed_forward(), tmp_path / "fused.onnx", input_sample=X).passed
    assert inspect_onnx(tmp_path / "fused.onnx").metadata.optimized == "bert"
    report = check_parity(feed_forward("tanh"), tmp_path / "fused.onnx", input_sample=X, strict=False)
    assert any("1 is gelu(approximate='tanh') in the module, and gelu in the file" in fault for fault in report.faults)


@pytest.mark.parametrize("approximate", ["as_trained", "tanh"])
def test_the_tanh_form_stays_what_it_is(tmp_path, approximate):
    net = feed_forward("tanh" if approximate == "as_trained" else "none")
    export_onnx(net, tmp_path / "net.onnx", X, approximate=approximate)
    # By itself the optimiser exchanges the form.
    itself = optimizer.optimize_model(str(tmp_path / "net.onnx"), "bert", opt_level=0).model
    assert "BiasGelu" in {node.op_type for node in itself.graph.node}
    optimize_onnx(tmp_path / "net.onnx", tmp_path / "fused.onnx")
    [gelu] = [node for node in onnx.load(tmp_path / "fused.onnx").graph.node if "Gelu" in node.op_type]
    assert [attribute.s for attribute in gelu.attribute] == [b"tanh"]
    assert check_parity(net, tmp_path / "fused.onnx", input_sample=X).passed


def test_what_cannot_be_optimised(source, tmp_path):
    with pytest.raises(ArgumentError, match="bert"):
        optimize_onnx(source, tmp_path / "fused.onnx", "no such type")
    torch.onnx.export(feed_forward(), (X,), tmp_path / "plain.onnx", dynamo=True, verbose=False)
    with pytest.raises(ModelFileError):
        optimize_onnx(tmp_path / "plain.onnx", tmp_path / "fused.onnx")
    assert not (tmp_path / "fused.onnx").exists()


def test_the_command(tmp_path, capsys):
    from cli_helpers import save_untrained

    model = save_untrained(tmp_path / "last.ckpt", activation="gelu", hidden_layers=1)
    assert isinstance(model, MNISTClassifier)
    export_onnx(model, tmp_path / "net.onnx")
    assert main(["optimize", str(tmp_path / "net.onnx"), "--ckpt", str(tmp_path / "last.ckpt")]) == 0
    assert "parity passed" in capsys.readouterr().out
    assert (tmp_path / "net.optimized.onnx").exists()
