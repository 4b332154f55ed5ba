"""Which nodes are quantised, and what they are called."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from lit_gelu.export import ExportOptionError, OnnxPredictor, export_onnx
from lit_gelu.export.quantization import quantize_onnx
from lit_gelu.export.quantization.layers import chosen, find_layers, passing_nodes
from lit_gelu.tasks import MNISTClassifier


class Block(nn.Module):
    """Attention between two linear layers, with a bias that the exporter adds in a node of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.norm, self.last = nn.Linear(6, 8), nn.SiLU(), nn.LayerNorm(8), nn.Linear(8, 3)
        self.example_input_array = torch.zeros(2, 5, 6)

    def forward(self, x):
        y = self.act(self.first(x))
        y = y + torch.softmax(y @ y.transpose(1, 2), -1) @ y
        return self.last(self.norm(y))


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    path = tmp_path_factory.mktemp("layers") / "block.onnx"
    export_onnx(Block(), path)
    return onnx.load(path)


def test_weights_are_layers_and_products_of_computed_values_are_not(block):
    layers = find_layers(block)
    assert [(layer.name, layer.operator) for layer in layers] == [("first", "MatMul"), ("last", "MatMul")]
    assert [layer.site for layer in layers] == ["act", None]
    assert sum(node.op_type == "MatMul" for node in block.graph.node) == 4


def test_patterns_take_modules_nodes_operators_and_activations(block):
    layers = find_layers(block)
    first, last = layers
    for pattern in ("fir*", first.node, "act"):
        assert chosen(layers, [pattern]) == [last]
    with pytest.raises(ExportOptionError, match="leaves all layers in float32"):
        chosen(layers, ["MatMul"])
    with pytest.raises(ExportOptionError, match=r"'none' fits no layer. The file has: first, last"):
        chosen(layers, ["none"])
    with pytest.raises(ExportOptionError, match="no operator that is quantised"):
        chosen([], [])


def test_preprocessing_is_no_layer_and_numbers_are_moved_by_what_moves_them(tmp_path):
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("matrix", torch.eye(784))

        def forward(self, pixels):
            return (pixels.to(torch.float32).flatten(1) @ self.matrix).reshape(-1, 1, 28, 28)

    path = tmp_path / "raw.onnx"
    pixels = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    export_onnx(MNISTClassifier(hidden_layers=1), path, pixels, preprocessing=Mixing())
    model = onnx.load(path)
    assert sum(node.op_type in {"MatMul", "Gemm"} for node in model.graph.node) == 3
    assert [layer.name for layer in find_layers(model)] == ["hidden.0.linear", "output"]


def test_an_activation_of_several_nodes_stays_whole(tmp_path):
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU6(), nn.MaxPool2d(2), nn.Flatten())
    export_onnx(net, tmp_path / "relu.onnx", torch.zeros(2, 1, 8, 8))
    nodes = {node.name: node.op_type for node in onnx.load(tmp_path / "relu.onnx").graph.node}
    passing = [nodes[name] for name in passing_nodes(onnx.load(tmp_path / "relu.onnx"))]
    assert sorted(passing) == sorted(["Relu", "Clip", "MaxPool", "Reshape"])
    from lit_gelu import activations

    net = nn.Sequential(nn.Conv2d(1, 4, 3), activations.create("relu2"))
    export_onnx(net, tmp_path / "relu2.onnx", torch.zeros(2, 1, 8, 8))
    assert passing_nodes(onnx.load(tmp_path / "relu2.onnx")) == []


def test_calls_of_one_relu_are_each_done_by_the_range(tmp_path):
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x):
            return torch.relu(self.second(torch.relu(self.first(x))))

    export_onnx(Calls(), tmp_path / "calls.onnx", torch.zeros(2, 1, 8, 8))
    model = onnx.load(tmp_path / "calls.onnx")
    assert len(passing_nodes(model)) == 2


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
@pytest.mark.parametrize("bounds", [(0.5, 6.0), (-6.0, -0.5), (1e-5, None), (None, -0.1)])
def test_a_clip_without_0_is_no_work_for_a_range(tmp_path, bounds, target):
    """Against torch in float32: a range holds 0 always, so it would let through what the Clip takes away."""

    class Clipped(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x):
            return torch.clamp(self.conv(x), *bounds)

    torch.manual_seed(0)
    net, x = Clipped().eval(), torch.randn(16, 3, 9, 9)
    export_onnx(net, tmp_path / "net.onnx", x)
    quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", x, target=target)
    y = OnnxPredictor(tmp_path / "int8.onnx", ["CPUExecutionProvider"])(x.numpy())
    low, high = bounds
    assert low is None or y.min() >= np.float32(low)
    assert high is None or y.max() <= np.float32(high)
    expected = net(x).detach().numpy()
    assert np.abs(y - expected).max() <= 0.1 * np.abs(expected).max()


class ClippedBetween(nn.Module):
    """Two convolutions, with a Clip between them behind which only 0 is left."""

    def __init__(self, bounds):
        super().__init__()
        self.first, self.last, self.bounds = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 2, 1), bounds
        with torch.no_grad():
            self.first.weight.abs_()
            self.first.bias.fill_(0.3)  # behind the first one all numbers are positive

    def forward(self, x):
        return self.last(self.first(x).clamp(*self.bounds))


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
@pytest.mark.parametrize("bounds", [(None, 0.0), (0.0, 0.0), (-2.0, 0.0)])
def test_a_clip_behind_which_0_alone_is_left_is_kept(tmp_path, bounds, target):
    """Against torch in float32: a range of 0 alone is stored as 0 to 255, which lets positive numbers through."""
    torch.manual_seed(2)
    net, x = ClippedBetween(bounds).eval(), torch.rand(64, 1, 8, 8)
    export_onnx(net, tmp_path / "net.onnx", x)
    quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", x, target=target)
    y = OnnxPredictor(tmp_path / "int8.onnx", ["CPUExecutionProvider"])(x.numpy())
    expected = net(x).detach().numpy()
    assert np.abs(y - expected).max() <= 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("function", [torch.relu, nn.functional.relu6])
def test_what_is_an_output_before_an_activation_keeps_its_range(tmp_path, function):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x):
            y = self.conv(x)
            return {"pre": y, "post": function(y)}

    torch.manual_seed(0)
    net, x = Both().eval(), 10 * torch.randn(16, 3, 9, 9)
    export_onnx(net, tmp_path / "net.onnx", x)
    quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", x)
    found = OnnxPredictor(tmp_path / "int8.onnx", ["CPUExecutionProvider"])(x.numpy())
    expected = [exact.detach().numpy() for exact in net(x).values()]
    for y, exact in zip(found, expected, strict=True):
        assert np.abs(y - exact).max() <= 0.05 * np.abs(expected[0]).max()
