"""The opset solver: which opset a graph needs in a dtype, and what is refused."""

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn
from traced_graph import TracedGraph

from lit_gelu import activations
from lit_gelu.errors import ArgumentError
from lit_gelu.export import OnnxPredictor, export_onnx
from lit_gelu.export.lowering import policy
from lit_gelu.export.lowering.lowering_table import TABLE
from lit_gelu.export.lowering.policy import Target, has_kernel


class ConvNet(nn.Module):
    def __init__(self, *specs):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.acts = nn.ModuleList([activations.create(spec) for spec in specs])
        self.example_input_array = torch.zeros(1, 1, 5, 5)

    def forward(self, x):
        x = self.conv(x)
        return [act(x) for act in self.acts]


@pytest.fixture(scope="module")
def conv_net():
    return TracedGraph(ConvNet("gelu", "elu", "selu", "celu", "mish", "hard_swish", "softplus"))


@pytest.mark.parametrize("target", ["portable", "ort-cuda"])
def test_bfloat16_convolutions_need_opset_22_and_then_elu_is_primitives(conv_net, target):
    graph, lowered = conv_net.lowered(target, "bf16", "fast")
    assert lowered.opset == 22
    onnx.checker.check_model(ir.to_proto(graph), full_check=True)
    assert not {"Elu", "Selu", "Celu"} & {node.op_type for node in graph.graph}


def test_others_stay_at_opset_20(conv_net):
    assert conv_net.lowered("ort-cuda", "fp16", "fast")[1].opset == 20


@pytest.mark.parametrize("opset", [22, 23])
@pytest.mark.parametrize("target", ["portable", "ort-cuda"])
@pytest.mark.parametrize(("dtype", "policy"), [("fp32", "fast"), ("fp16", "strict"), ("bf16", "fast")])
def test_elu_has_no_node_of_its_own_from_opset_22_on(conv_net, opset, target, dtype, policy):
    """There onnxruntime's CUDA provider runs Elu, Selu and ThresholdedRelu on the CPU, without a word."""
    graph, lowered = conv_net.lowered(target, dtype, policy, opset=opset)
    assert lowered.opset == opset == graph.graph.opset_imports[""]
    names = {node.op_type for node in graph.graph}
    assert not names & {"Elu", "Selu", "Celu", "ThresholdedRelu"}
    assert all(has_kernel("ort-cuda", name, "fp32", opset) for name in names)


def test_a_named_lowering_that_lands_on_the_cpu_is_said(conv_net):
    _, lowered = conv_net.lowered("ort-cuda", "fp32", "strict", "native", opset=22)
    assert any("Elu at opset 22 on ort-cuda" in note for note in lowered.notes)


def test_an_opset_that_does_not_hold_the_dtype_is_refused(conv_net):
    with pytest.raises(ArgumentError):
        conv_net.lowered("portable", "bf16", "strict", opset=20)
    with pytest.raises(ArgumentError):
        conv_net.lowered("tensorrt", "bf16", "strict")  # reads nothing above 20


@pytest.mark.parametrize("opset", [18, 19])
def test_gelu_and_silu_at_opsets_18_and_19_are_fused_by_onnxruntime(tmp_path, opset):
    """torch's own order, x * (0.5 * (1 + erf)), is not."""
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.GELU("tanh"), nn.Linear(4, 4), nn.SiLU())
    path = tmp_path / "old.onnx"
    report = export_onnx(model, path, torch.zeros(2, 4), opset=opset)
    assert report.opset == opset == onnx.load(path).opset_import[0].version
    assert report.sites[0].operators == ("Mul", "Div", "Erf", "Add", "Mul")
    assert report.sites[2].operators == ("Sigmoid", "Mul")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = sorted(node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node)
    assert names == ["FastGelu", "Gelu", "Gemm", "Gemm", "Gemm", "QuickGelu"]
    x = torch.randn(8, 4)
    assert torch.allclose(OnnxPredictor(path)(x), model(x), atol=1e-6)


def test_an_operator_that_the_installed_onnxruntime_lacks_gives_way_to_the_next_line(monkeypatch):
    """ScaledSiLU came with onnxruntime 1.31; the stable formula in float32 is in files for older ones."""
    silu = TABLE["silu"]
    monkeypatch.setattr(policy, "runs", policy.runs.__wrapped__)  # which remembers what there was
    monkeypatch.setattr(policy, "has_contrib_operator", lambda name: name != "com.microsoft::ScaledSiLU")
    for dtype in ("fp16", "bf16"):
        choice = policy.choose(silu, Target("ort-cuda", dtype), 22)
        assert choice.in_fp32
        assert "Sigmoid" not in choice.operators
        assert str(choice) == str(policy.choose(silu, Target("ort-cpu", dtype), 22))
    monkeypatch.setattr(policy, "has_contrib_operator", lambda name: True)
    assert policy.choose(silu, Target("ort-cuda", "fp16"), 22).operators == ("com.microsoft::ScaledSiLU",)
