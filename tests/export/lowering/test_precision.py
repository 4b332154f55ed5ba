"""Files that compute in float16 and bfloat16: what is converted, what stays, and the values."""

import math

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from bfloat16_twin import fp32_twin
from onnx import TensorProto
from torch import nn
from traced_graph import TracedGraph

from lit_gelu.errors import ArgumentError
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx


class Net(nn.Module):
    """Weights, an attention mask of -3.4e38, a sum of squares, an integer input, an output that is an input."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(5, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.LayerNorm(16))
        self.head = nn.Linear(16, 3)
        self.register_buffer("mask", torch.tensor([0.0, torch.finfo(torch.float32).min, 0.0]))
        self.example_input_array = {"x": torch.randn(2, 8), "token": torch.zeros(2, dtype=torch.int64)}

    def forward(self, x, token):
        h = self.body(x + self.embed(token))
        h = h / torch.sqrt((h**2).mean(-1, keepdim=True) + 1e-6)
        return {"logits": torch.softmax(self.head(h) + self.mask, -1), "same": x, "count": token + 1}


@pytest.fixture(scope="module")
def net():
    return TracedGraph(Net())


def run(graph, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    proto = ir.to_proto(graph).SerializeToString()
    return onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def kinds(proto):
    return {value.name: value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output)}


class Pooled(nn.Module):
    """A mean and a sum over places, as at the end of a convolutional net."""

    def forward(self, x):
        return x.mean((2, 3)) + x.sum((2, 3)) / 64


@pytest.mark.parametrize("policy", ["strict", "fast"])
@pytest.mark.parametrize(("dtype", "stays"), [("fp16", True), ("bf16", False)])
def test_sums_whose_float16_kernels_overflow_stay_in_float32(tmp_path, policy, dtype, stays):
    path = tmp_path / "pooled.onnx"
    export_onnx(Pooled(), path, torch.randn(2, 3, 8, 8), dtype=dtype, target="ort-cuda", policy=policy)
    proto = onnx.shape_inference.infer_shapes(onnx.load(path))
    types = {value.name: value.type.tensor_type.elem_type for value in proto.graph.value_info}
    sums = [node for node in proto.graph.node if node.op_type in {"ReduceMean", "ReduceSum"}]
    assert {node.op_type for node in sums} == {"ReduceMean", "ReduceSum"}
    for node in sums:
        assert (types[node.output[0]] == TensorProto.FLOAT) == (stays or policy == "strict")
    if dtype == "fp16":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (outputs,) = session.run(None, {session.get_inputs()[0].name: np.full((2, 3, 8, 8), 5000, np.float16)})
        assert np.array_equal(outputs, np.full((2, 3), 10_000))


@pytest.mark.parametrize(("dtype", "kind"), [("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)])
@pytest.mark.parametrize("policy", ["strict", "fast"])
def test_inputs_outputs_and_weights_have_the_dtype(net, dtype, kind, policy):
    graph, _ = net.lowered("portable", dtype, policy)
    proto = ir.to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    integer = TensorProto.INT64
    assert kinds(proto) == {"x": kind, "same": kind, "logits": kind, "token": integer, "count": integer}
    weights = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    assert {weights[name] for name in ("embed.weight", "body.0.weight", "head.weight", "head.bias")} == {kind}


@pytest.mark.parametrize("entry", ["he*", "Gemm"])
def test_what_is_named_stays_in_float32(net, entry):
    graph, _ = net.lowered("portable", "fp16", "fast", "native", keep_fp32=[entry])
    proto = ir.to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    weights = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    assert weights["head.weight"] == TensorProto.FLOAT
    assert weights["embed.weight"] == TensorProto.FLOAT16


def test_what_fits_nothing_is_refused(net):
    with pytest.raises(ArgumentError):
        net.lowered("portable", "fp16", "fast", keep_fp32=["decoder.*"])


@pytest.mark.parametrize("policy", ["strict", "fast"])
@pytest.mark.parametrize("io_dtype", ["same", "fp32"])
def test_float16_values(net, policy, io_dtype):
    graph, _ = net.lowered("ort-cpu", "fp16", policy, io_dtype=io_dtype)
    x, token = torch.randn(50, 8), torch.randint(0, 5, (50,))
    fed = x.numpy() if io_dtype == "fp32" else x.half().numpy()
    logits, _, _ = run(graph, {"x": fed, "token": token.numpy()})
    with torch.no_grad():
        exact = net.model.eval()(x, token)["logits"]
    assert np.isfinite(logits).all()
    assert np.abs(logits - exact.numpy()).max() < 5e-3
    assert (logits[:, 1] == 0).all()  # the mask is float16's smallest number, not -inf or NaN


@pytest.mark.parametrize("policy", ["strict", "fast"])
def test_bfloat16_values_by_the_float32_twin(net, policy):
    graph, _ = net.lowered("ort-cuda", "bf16", policy, "native")  # ScaledSiLU is onnxruntime's own
    twin = fp32_twin(graph)
    onnx.checker.check_model(ir.to_proto(twin), full_check=True)
    x, token = torch.randn(50, 8), torch.randint(0, 5, (50,))
    logits, same, _ = run(twin, {"x": x.numpy(), "token": token.numpy()})
    with torch.no_grad():
        exact = net.model.eval()(x, token)["logits"]
        half = net.model.eval().bfloat16()(x.bfloat16(), token)["logits"]
        net.model.float()
    error = (half.float() - exact).abs().max().item()
    assert np.abs(logits - exact.numpy()).max() < 2 * error
    rounded = logits.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert (rounded == logits).all()  # every result is a bfloat16 number
    np.testing.assert_array_equal(same, x.bfloat16().float().numpy())


class TimeSteps(nn.Module):
    """Sines of time steps before a layer, as in diffusion models; and a mask of integers, made in the forward pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 16)
        self.example_input_array = {"steps": torch.arange(4), "allowed": torch.ones(4, 16, dtype=torch.int64)}

    def forward(self, steps, allowed):
        frequencies = torch.exp(-torch.arange(32) * (math.log(10000) / 31))
        angles = steps.float()[:, None] * frequencies
        out = self.layer(torch.cat([angles.sin(), angles.cos()], -1))
        return torch.softmax(out + (1 - allowed.float()) * -1e9, -1)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_what_follows_from_integers_stays_in_float32_up_to_the_first_layer(dtype):
    traced = TracedGraph(TimeSteps())
    graph, _ = traced.lowered("ort-cpu", dtype)
    proto = ir.to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    twin = fp32_twin(graph)
    steps, allowed = torch.arange(0, 1000, 7), torch.ones(143, 16, dtype=torch.int64)
    allowed[::3, 5:] = 0
    allowed[-1] = 0  # nothing is allowed: the mask must not be infinite
    (got,) = run(twin, {"steps": steps.numpy(), "allowed": allowed.numpy()})
    with torch.no_grad():
        exact = traced.model.eval()(steps, allowed)
    assert np.isfinite(got).all()
    assert np.abs(got - exact.numpy())[:-1].max() < {"fp16": 1e-3, "bf16": 8e-3}[dtype]
    kept = {node.op_type for node in graph.graph if any(value.dtype == ir.DataType.FLOAT for value in node.outputs)}
    assert {"Cast", "Mul", "Sin", "Cos", "Concat", "Sub"} <= kept  # and what a release of torch reshapes with
    assert not kept & {"Gemm", "MatMul", "Add", "Softmax"}


class Returning(nn.Module):
    """Returns its own input beside a sum, and weights: one that nothing reads, one read by a sum, one by a product."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.logit_scale = nn.Linear(8, 3), nn.Parameter(torch.tensor(2.65926003))
        self.summed, self.factor = nn.Parameter(torch.randn(1, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x):
        y = nn.functional.gelu(self.layer(x * self.factor))
        total = x.square().sum(1) + self.summed.sum(1).exp()
        return {"y": y, "same": x, "sum": total, "scale": self.logit_scale, "read": self.summed, "factor": self.factor}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("io_dtype", ["fp32", "same"])
def test_inputs_and_weights_that_are_outputs(tmp_path, dtype, io_dtype):
    net, x, path = Returning(), torch.randn(4, 8), tmp_path / "net.onnx"
    export_onnx(net, path, x, dtype=dtype, io_dtype=io_dtype)
    kinds = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
    types = {value.name: value.type.tensor_type.elem_type for value in onnx.load(path).graph.output}
    assert set(types.values()) == {kinds["fp32" if io_dtype == "fp32" else dtype]}
    if dtype == "bf16":
        return  # onnxruntime's CPU provider has no products of bfloat16
    outputs = dict(zip(types, OnnxPredictor(path)(x if io_dtype == "fp32" else x.half()), strict=True))
    for name, value in {"scale": net.logit_scale, "read": net.summed, "factor": net.factor}.items():
        torch.testing.assert_close(outputs[name].float(), value.detach(), rtol=2.0**-11, atol=1e-7)
    assert check_parity(net, path, input_sample=x).passed


class Several(nn.Module):
    """A GELU behind layers whose bias is an Add, a part of a Gemm, and of a Conv."""

    def __init__(self):
        super().__init__()
        self.example_input_array = (torch.zeros(2, 8), torch.zeros(2, 5, 8), torch.zeros(2, 4, 6, 7))
        self.image = nn.Sequential(nn.Conv2d(4, 8, 3), nn.GELU())
        self.matrix, self.sequence = (nn.Sequential(nn.Linear(8, 16), nn.GELU()) for _ in range(2))

    def forward(self, x, sequences, images):
        return {"image": self.image(images), "matrix": self.matrix(x), "sequence": self.sequence(sequences)}


@pytest.mark.parametrize("target", ["portable", "ort-cuda"])
def test_onnxruntime_makes_no_bias_gelu_of_a_strict_float16_file(target):
    """Its fusion takes a bias of one dimension: there each is a row. In float16 its BiasGelu has no tail."""
    several, generator = TracedGraph(Several()), np.random.default_rng(0)
    graph, _ = several.lowered(target, "fp16")
    shapes = []
    for node in graph.graph:
        if node.op_type == "Gelu" and node.inputs[0].producer().op_type == "Add":
            bias = next(value for value in node.inputs[0].producer().inputs if value.const_value is not None)
            shapes.append(tuple(bias.const_value.shape))
    assert shapes == [(1, 16)]  # "sequence"; the other layers are Gemm and Conv
    sizes = {"x": (7, 8), "sequences": (7, 5, 8), "images": (7, 4, 6, 7)}
    feeds = {name: generator.normal(0, 2, size).astype(np.float16) for name, size in sizes.items()}
    plain, fast = (run(several.lowered(target, "fp16", policy)[0], feeds)[-1] for policy in ("strict", "fast"))
    np.testing.assert_allclose(plain, fast, rtol=0, atol=4e-3)
