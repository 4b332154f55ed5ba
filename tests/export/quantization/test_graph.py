"""The quantised graph: numbers against numpy and onnx's reference evaluator, activations against the float file."""

import numpy as np
import onnx
import pytest
import torch
from export_cases import CASES, GELU_FORMS, operators_by_site
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

from lit_gelu import activations
from lit_gelu.export import ExportError, OnnxPredictor, export_onnx
from lit_gelu.export.quantization import graph, quantize_onnx


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory):
    """Linear and GELU, with one channel of weights a hundred times as large as the others."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(48, 10), nn.GELU())
    with torch.no_grad():
        net[0].weight[3] *= 100
    folder = tmp_path_factory.mktemp("one_layer")
    export_onnx(net, folder / "net.onnx", torch.zeros(2, 48))
    x = torch.randn(200, 48)
    for target in ("ort-cpu", "ort-cuda"):
        quantize_onnx(folder / "net.onnx", folder / f"{target}.onnx", x, target=target)
    return net, folder, x


def constants(path):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
def test_weights_are_rounded_channel_by_channel(one_layer, target):
    net, folder, _ = one_layer
    stored = constants(folder / f"{target}.onnx")
    w = net[0].weight.detach().numpy()
    scale = np.array([max(abs(sum(row[k : k + n])) for k in range(48) for n in (1, 2)) for row in w]) / 127
    assert stored["0.weight_quantized"].dtype == np.int8
    assert not stored["0.weight_zero_point"].any()
    np.testing.assert_allclose(stored["0.weight_scale"], scale, rtol=1e-6)
    np.testing.assert_array_equal(stored["0.weight_quantized"], np.rint(w / stored["0.weight_scale"][:, None]))
    back = stored["0.weight_quantized"] * stored["0.weight_scale"][:, None]
    assert (np.abs(back - w) <= scale[:, None] / 2 * (1 + 1e-5)).all()


def test_activations_take_the_range_of_the_data(one_layer):
    _, folder, x = one_layer
    low, high = float(x.min()), float(x.max())
    stored = constants(folder / "ort-cpu.onnx")
    assert stored["input_zero_point"].dtype == np.uint8
    assert stored["input_scale"] == pytest.approx((high - low) / 255, rel=1e-6)
    assert stored["input_zero_point"] == round(-low / ((high - low) / 255))
    stored = constants(folder / "ort-cuda.onnx")
    assert stored["input_zero_point"].dtype == np.int8
    assert stored["input_zero_point"] == 0
    assert stored["input_scale"] == pytest.approx(max(-low, high) / 127, rel=1e-6)


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
def test_a_layer_computes_what_the_definition_says(one_layer, target):
    """In whole numbers and float64, and by onnx's reference evaluator on the file itself."""
    _, folder, x = one_layer
    path, x = folder / f"{target}.onnx", x.numpy()
    stored = constants(path)
    limits = np.iinfo(stored["input_zero_point"].dtype)
    zero, scale = int(stored["input_zero_point"]), stored["input_scale"].astype(np.float64)
    q = np.clip(np.rint(x / stored["input_scale"]) + zero, limits.min, limits.max).astype(np.int64) - zero
    whole = q @ stored["0.weight_quantized"].T.astype(np.int64) + stored["0.bias_quantized"].astype(np.int64)
    expected = GELU_FORMS["none"](whole * (scale * stored["0.weight_scale"].astype(np.float64)))
    y = OnnxPredictor(path, ["CPUExecutionProvider"])(x)
    largest = np.abs(expected).max(0)
    assert (np.abs(y - expected) <= 1e-5 * largest).all()
    (reference,) = ReferenceEvaluator(str(path)).run(None, {"input": x})
    assert (np.abs(reference - expected) <= 1e-5 * largest).all()


def test_reduced_range_takes_7_bits(one_layer, tmp_path):
    _, folder, x = one_layer
    quantize_onnx(folder / "net.onnx", tmp_path / "reduced.onnx", x, reduce_range=True)
    assert np.abs(constants(tmp_path / "reduced.onnx")["0.weight_quantized"]).max() == 64
    quantize_onnx(folder / "net.onnx", tmp_path / "tensor.onnx", x, per_channel=False)
    assert constants(tmp_path / "tensor.onnx")["0.weight_scale"].size == 1


class Every(nn.Module):
    """Every activation between two linear layers."""

    def __init__(self):
        super().__init__()
        self.firsts = nn.ModuleList([nn.Linear(6, 8) for _ in CASES])
        self.sites = nn.ModuleList([activations.create(case.spec) for case in CASES])
        self.heads = nn.ModuleList([nn.Linear(8, 2) for _ in CASES])
        self.example_input_array = torch.zeros(2, 6)

    def forward(self, x):
        rows = zip(self.firsts, self.sites, self.heads, strict=True)
        return {f"y{i}": head(site(first(x))) for i, (first, site, head) in enumerate(rows)}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("lowering", ["native", "primitives", "contrib"])
def test_no_activation_becomes_another_one(tmp_path, lowering):
    """Operator by operator, also where it is spelt out: onnxruntime would quantise the Mul and Sigmoid of a SiLU."""
    torch.manual_seed(0)
    path, int8 = tmp_path / "every.onnx", tmp_path / "every-int8.onnx"
    export_onnx(Every(), path, lowering=lowering)
    result = quantize_onnx(path, int8, torch.randn(64, 6))
    assert len(result.record.layers) == 2 * len(CASES)
    assert operators_by_site(int8) == operators_by_site(path)
    attributes = [
        [
            (node.op_type, [onnx.helper.get_attribute_value(a) for a in node.attribute])
            for node in onnx.load(file).graph.node
            if node.metadata_props
        ]
        for file in (path, int8)
    ]
    assert attributes[0] == attributes[1]
    x = torch.randn(16, 6)
    for y, expected in zip(OnnxPredictor(int8)(x), OnnxPredictor(path)(x), strict=True):
        assert float((y - expected).norm()) < 0.1 * float(expected.norm())


def test_a_relu_behind_a_convolution_is_done_by_its_range(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4))
    path, int8 = tmp_path / "relu.onnx", tmp_path / "relu-int8.onnx"
    export_onnx(net, path, torch.zeros(2, 1, 8, 8))
    x = torch.randn(128, 1, 8, 8)
    result = quantize_onnx(path, int8, x)
    assert (result.census["Relu"], result.quantized_census.get("Relu", 0)) == (1, 0)
    y, expected = OnnxPredictor(int8)(x), net(x).detach()
    assert float((y - expected).norm()) < 0.02 * float(expected.norm())


def test_a_changed_activation_is_refused():
    def model(**attributes):
        node = onnx.helper.make_node("Gelu", ["x"], ["y"], **attributes)
        return onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []))

    graph._require_same_activations(model(), model())
    with pytest.raises(ExportError, match=r"1 Gelu\(none\) became 0; 0 Gelu\(tanh\) became 1"):
        graph._require_same_activations(model(), model(approximate="tanh"))


def text_model(tmp_path, nodes):
    text = f"""<ir_version: 10, opset_import: ["" : 20, "other" : 1]>
    net (float[batch, 2, 3] x) => (float[batch, 6] y) <int64[1] six = {{6}}> {{ {nodes} }}"""
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_shapes_of_a_reshape_that_follows_the_batch(tmp_path, monkeypatch):
    """As torch 2.11 writes `flatten`; onnxruntime 1.28 cannot infer it, and leaves files behind."""
    monkeypatch.chdir(tmp_path)
    nodes = "n = Shape <start = 0, end = 1> (x) s = Concat <axis = 0> (n, six) z = Reshape (x, s) y = Relu (z)"
    path = text_model(tmp_path, nodes)
    found = {info.name: info.type.tensor_type for info in graph.with_shapes(path).graph.value_info}
    assert list(found) == ["n", "s", "z"]
    assert [len(found[name].shape.dim) for name in found] == [1, 1, 2]
    assert found["z"].elem_type == onnx.TensorProto.FLOAT
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


def test_a_value_without_a_shape_is_named(tmp_path):
    path = text_model(tmp_path, "z = other.Unknown (x) y = Reshape (z, six)")
    with pytest.raises(ExportError, match=r"cannot infer the shapes of .*net\.onnx.*: z$"):
        graph.with_shapes(path)


class CalledTwice(nn.Module):
    """One layer, called twice: both calls read its weight and bias."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(nn.functional.gelu(self.layer(x)))


class Stacked(nn.Module):
    """A product with a stack of matrices, and a convolution behind it."""

    def __init__(self):
        super().__init__()
        self.weight, self.conv = nn.Parameter(torch.randn(4, 8, 8) / 3), nn.Conv2d(4, 3, 1)

    def forward(self, x):
        return self.conv(nn.functional.gelu(x @ self.weight))


def upsampling():
    return nn.Sequential(nn.ConvTranspose2d(4, 8, 3, groups=2), nn.GELU(), nn.Conv2d(8, 3, 3))


UNUSUAL = {
    "a linear layer called twice": lambda: CalledTwice(nn.Linear(8, 8)),
    "a convolution called twice": lambda: CalledTwice(nn.Conv2d(4, 4, 3, padding=1)),
    "a stack of matrices": Stacked,
    "a grouped transposed convolution": upsampling,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "options", [{}, {"per_channel": False}, {"target": "ort-cuda"}, {"target": "tensorrt"}], ids=str
)
@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL)
def test_layers_that_onnxruntimes_quantizer_or_optimiser_does_not_take_as_they_are(tmp_path, make, options):
    torch.manual_seed(0)
    net, x = make().eval(), torch.randn(64, 4, 8, 8)
    export_onnx(net, tmp_path / "net.onnx", x[:2])
    result = quantize_onnx(tmp_path / "net.onnx", tmp_path / "int8.onnx", x, **options)
    assert len(result.record.layers) == 2
    with torch.no_grad():
        expected = net(x)
    assert float((OnnxPredictor(tmp_path / "int8.onnx")(x) - expected).norm()) < 0.05 * float(expected.norm())
