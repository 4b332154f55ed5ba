"""Sums of int8 products on processors without VNNI, by the instruction's own arithmetic, on any machine."""

import itertools

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from saturating_sums import rows_by_hand, saturating_products, worst_inputs
from torch import nn

from lit_gelu.data import DigitsData
from lit_gelu.export import ExportError, OnnxPredictor, export_onnx
from lit_gelu.export.quantization import check_quantized, graph, quantize_onnx
from lit_gelu.export.quantization.layers import NetLayer
from lit_gelu.export.quantization.saturation import range_overrides, saturating_layers
from lit_gelu.export.runtime.session import EXACT_SUMS, config_entry


def test_the_oracle_stops_at_16_bits_and_nowhere_else():
    x, w = np.array([[255, 255, 1, 1]], np.uint8), np.array([[127, 127, -1, -1]], np.int8)
    assert saturating_products(x, w) == [[32767 - 2]]
    assert saturating_products(x, -w) == [[-32768 + 2]]
    assert saturating_products(x, w, first=1) == [[255 * 127 + (255 * 127 - 1) - 1]]
    small = np.random.default_rng(0).integers(-64, 65, (3, 31)).astype(np.int8)
    x = np.random.default_rng(1).integers(0, 256, (5, 31)).astype(np.uint8)
    assert np.array_equal(saturating_products(x, small), x.astype(int) @ small.T.astype(int))


def int8_layers(path):
    """The nodes with int8 weights, and these."""
    model = onnx.load(path)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    read = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    for node in model.graph.node:
        if node.op_type in {"Conv", "Gemm", "MatMul"}:
            yield node, stored[read[node.input[1]]]


def worst_error(path):
    """How far the worst input's sum is from the right one, over all layers and both ways to pair neighbours."""
    errors = [0]
    for node, weight in int8_layers(path):
        rows = rows_by_hand(node, weight)
        x = worst_inputs(rows)
        right = x.astype(np.int64) @ rows.T.astype(np.int64)
        errors += [int(np.abs(saturating_products(x, rows, first) - right).max()) for first in (0, 1)]
    return max(errors)


def dense(bias=True):
    return nn.Sequential(nn.Linear(48, 64, bias=bias), nn.GELU(), nn.Linear(64, 10, bias=bias)), torch.randn(100, 48)


def convolutional():
    body = [
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.GELU(),
        nn.Conv2d(8, 6, (2, 3)),
        nn.Flatten(),
    ]
    return nn.Sequential(*body, nn.Linear(36, 4)), torch.randn(32, 3, 8, 8)


NETS = {"linear": dense, "without bias": lambda: dense(bias=False), "convolutions": convolutional}


@pytest.fixture(scope="module", params=NETS)
def net(request, tmp_path_factory):
    torch.manual_seed(0)
    module, x = NETS[request.param]()
    path = tmp_path_factory.mktemp("nets") / "net.onnx"
    export_onnx(module, path, x[:2])
    return module.eval(), path, x


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", ["portable", "ort-cpu", "ort-cuda"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_no_input_makes_a_sum_leave_16_bits(net, tmp_path, target, per_channel):
    _, path, x = net
    result = quantize_onnx(path, tmp_path / "int8.onnx", x, target=target, per_channel=per_channel)
    assert worst_error(tmp_path / "int8.onnx") == 0
    assert saturating_layers(onnx.load(tmp_path / "int8.onnx")) == []
    assert result.record.bounded
    assert "bounded for 16-bit sums" in str(result)


def test_the_widest_ranges_would_saturate_and_are_tensorrts(net, tmp_path):
    """TensorRT adds in 32 bits. The same check, on weights in -127..127, finds the error that it looks for."""
    _, path, x = net
    result = quantize_onnx(path, tmp_path / "int8.onnx", x, target="tensorrt")
    assert worst_error(tmp_path / "int8.onnx") > 10_000
    assert len(saturating_layers(onnx.load(tmp_path / "int8.onnx"))) == len(result.record.layers)
    assert not result.record.bounded
    assert "bounded" not in str(result)


def test_seven_bits_hold_in_any_order(net, tmp_path):
    _, path, x = net
    assert quantize_onnx(path, tmp_path / "int8.onnx", x, reduce_range=True).record.bounded
    for _, weight in int8_layers(tmp_path / "int8.onnx"):
        assert np.abs(weight.astype(int)).max() <= 64


def test_bounded_ranges_lose_less_than_seven_bits(net, tmp_path):
    """Errors of weights, root of the mean square: with bounded ranges between those of 8 and of 7 bits."""
    _, path, x = net
    noise = {}
    for name, options in {"8": {"target": "tensorrt"}, "bounded": {}, "7": {"reduce_range": True}}.items():
        quantize_onnx(path, tmp_path / "int8.onnx", x, **options)
        stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "int8.onnx").graph.initializer}
        scales = [stored[key].astype(float) for key in stored if key.endswith("weight_scale")]
        noise[name] = np.sqrt(np.mean(np.concatenate(scales) ** 2))
    assert noise["8"] < noise["bounded"] < noise["7"]


def test_what_is_computed_is_what_the_definition_says_by_saturating_sums_too(digits):
    """Layer by layer on test images: the oracle's sums are those of unlimited whole numbers."""
    data = DigitsData()
    data.setup("test")
    x = (data.test_set.images.flatten(1).numpy() * 255).astype(np.uint8)[:50]
    for _, weight in itertools.islice(int8_layers(digits.int8), 1):
        assert np.array_equal(saturating_products(x, weight), x.astype(int) @ weight.T.astype(int))


def one_weight(weight, *nodes):
    """A model in which the nodes share a weight."""
    made = [
        helper.make_node(op, ["x", "w"], [f"y{i}"], f"n{i}", **attributes) for i, (op, attributes) in enumerate(nodes)
    ]
    model = helper.make_model(helper.make_graph(made, "g", [], [], [numpy_helper.from_array(weight, "w")]))
    return model, [NetLayer(node.name, node.name, node.op_type) for node in made]


GEMM, TRANSPOSED, MATMUL, CONV = ("Gemm", {}), ("Gemm", {"transB": 1}), ("MatMul", {}), ("Conv", {})


def test_only_channels_that_need_it_get_a_wider_range():
    weight = np.array([[1.0, 0.1, -0.9, 0.0], [1.0, 0.5, 0.2, 0.0]], np.float32)
    for w, node, axis in ((weight, TRANSPOSED, 0), (weight.T.copy(), GEMM, 1), (weight.T.copy(), MATMUL, 1)):
        (found,) = range_overrides(*one_weight(w, node), per_channel=True).values()
        assert [entry["axis"] for entry in found] == [axis, axis]
        assert [entry["rmax"] for entry in found] == [pytest.approx(1.1), pytest.approx(1.5)]
    alternating = np.array([[1.0, -1.0, 1.0]], np.float32)  # no two of one sign beside each other
    assert range_overrides(*one_weight(alternating, TRANSPOSED), per_channel=True) == {}
    (found,) = range_overrides(*one_weight(weight, TRANSPOSED), per_channel=False).values()
    assert found == [{"rmin": pytest.approx(-1.5), "rmax": pytest.approx(1.5)}]


def test_a_convolution_is_read_place_by_place():
    weight = np.zeros((1, 2, 1, 3), np.float32)
    weight[0, 0, 0, 0] = weight[0, 1, 0, 0] = 1.0  # two channels of one place
    assert range_overrides(*one_weight(weight, CONV), per_channel=True)["w"][0]["rmax"] == 2.0
    weight = np.zeros((1, 2, 1, 3), np.float32)
    weight[0, 0, 0, 0] = weight[0, 0, 0, 1] = 1.0  # two places of one channel
    assert range_overrides(*one_weight(weight, CONV), per_channel=True) == {}


def test_weights_of_one_and_three_dimensions():
    ones = np.ones((2, 3, 3), np.float32)
    for per_channel in (True, False):
        found = range_overrides(*one_weight(ones, MATMUL), per_channel=per_channel)
        assert found["w"] == [{"rmin": -2.0, "rmax": 2.0}]
    assert range_overrides(*one_weight(ones[0, 0], MATMUL), per_channel=True)["w"] == [{"rmin": -2.0, "rmax": 2.0}]


def test_a_quantizer_that_does_not_keep_to_the_ranges_is_refused(net, tmp_path, monkeypatch):
    _, path, x = net
    monkeypatch.setattr(graph, "range_overrides", lambda *_, **__: {})
    with pytest.raises(ExportError, match=r"did not keep to the ranges.*Use reduce_range=True"):
        quantize_onnx(path, tmp_path / "int8.onnx", x)
    assert not (tmp_path / "int8.onnx").exists()


def exact_sums(path, **options):
    session = OnnxPredictor(path, ["CPUExecutionProvider"], **options).session
    return config_entry(session.get_session_options(), EXACT_SUMS)


def test_other_int8_files_are_added_in_32_bits(net, digits, tmp_path):
    """onnxruntime then takes slower kernels on processors without VNNI, which our own files do not need."""
    import onnxruntime

    module, path, x = net
    quantize_onnx(path, tmp_path / "int8.onnx", x, target="tensorrt")
    assert exact_sums(tmp_path / "int8.onnx") == "1"
    assert exact_sums(digits.int8) is None
    assert exact_sums(path) is None
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(EXACT_SUMS, "0")
    assert exact_sums(tmp_path / "int8.onnx", sess_options=options) == "0"
    foreign = onnx.load(digits.int8)
    foreign.ClearField("metadata_props")
    onnx.save(foreign, tmp_path / "foreign.onnx")
    assert exact_sums(tmp_path / "foreign.onnx") == "1"
    (note,) = check_quantized(module, tmp_path / "int8.onnx", x, x[:2], max_difference=1.0, strict=False).notes[-1:]
    assert note.startswith("On x86 processors without VNNI, sums of ")
    assert "session.x64quantprecision=1" in note


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"bounded": "yes"}', "[" * 100_000, "\0"])
def test_a_record_that_says_nothing_is_no_promise(digits, tmp_path, text):
    model = onnx.load(digits.int8)
    helper.set_model_props(model, {"lit_gelu_int8": text})
    onnx.save(model, tmp_path / "odd.onnx")
    assert exact_sums(tmp_path / "odd.onnx") == "1"


def test_weights_of_more_than_8_bits_are_none_of_this():
    model, layers = one_weight(np.ones((2, 2), np.float32), GEMM)
    assert saturating_layers(model) == []
    assert model.graph.initializer[0].data_type == TensorProto.FLOAT
    assert range_overrides(model, [], per_channel=True) == {}
    assert layers
