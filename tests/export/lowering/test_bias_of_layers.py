"""A layer's bias goes to the GELU behind it where CUDA's provider has one kernel for both, and nowhere else."""

import math

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from scipy import special
from torch import nn
from traced_graph import TracedGraph

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.lowering import policy
from lit_gelu.export.lowering.lowering_table import TABLE
from lit_gelu.export.lowering.policy import Target


class Several(nn.Module):
    """Layers whose GELU can take the bias (first two), and layers where it cannot."""

    def __init__(self):
        super().__init__()
        self.example_input_array = (torch.zeros(2, 8), torch.zeros(2, 5, 8), torch.zeros(2, 4, 6, 7))
        self.image = nn.Sequential(
            nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 4, 3, groups=2), nn.GELU()
        )
        torch.nn.init.normal_(self.image[1].weight)
        self.signal = nn.Sequential(nn.Conv1d(5, 8, 3), nn.GELU())
        self.matrix, self.sequence = (nn.Sequential(nn.Linear(8, 16), nn.GELU()) for _ in range(2))
        self.biasless = nn.Sequential(nn.Linear(8, 16, bias=False), nn.GELU())
        self.first, self.second, self.shared = nn.Linear(8, 8), nn.Linear(8, 8), nn.GELU()
        self.layer, self.mixed = nn.Linear(8, 8), nn.GELU()
        self.scaled, self.scaled_gelu = nn.Linear(8, 8), nn.GELU()
        self.read, self.read_gelu = nn.Linear(8, 8), nn.GELU()
        self.tied, self.tied_gelu = nn.Linear(8, 8), nn.GELU()

    def forward(self, x, sequences, images):
        product = self.read(x)
        return {
            "image": self.image(images),
            "signal": self.signal(sequences),
            "matrix": self.matrix(x),
            "sequence": self.sequence(sequences),
            "shared": self.shared(self.second(self.shared(self.first(x)))),
            "biasless": self.biasless(x),
            "mixed": self.mixed(self.mixed(self.layer(x))),
            "scaled": self.scaled_gelu(torch.addmm(self.scaled.bias, x, self.scaled.weight.T, beta=0.5, alpha=3.0)),
            "read": self.read_gelu(product) + product,
            "tied": self.tied_gelu(self.tied(x)) @ self.tied.weight,
        }


TAKES = {"matrix.1": 1, "sequence.1": 1, "shared": 2}
BIASED = ("com.microsoft::BiasGelu",)


@pytest.fixture(scope="module")
def several():
    return TracedGraph(Several())


def outputs(graph, dtype=np.float32):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    proto = ir.to_proto(graph).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    fed = {port.name: generator.normal(0, 2, (7, *port.shape[1:])).astype(dtype) for port in session.get_inputs()}
    return dict(zip([port.name for port in session.get_outputs()], session.run(None, fed), strict=True))


def taking(lowered):
    return {site.site: site.calls for site in lowered.sites if site.operators == BIASED}


@pytest.mark.parametrize(("dtype", "policy"), [("fp32", "strict"), ("fp32", "fast"), ("fp16", "fast")])
def test_the_gelu_adds_the_bias_of_the_layer_in_front(several, dtype, policy):
    """Every call of its site must have such a layer; nothing else may read layer or weight."""
    _, lowered = several.lowered("ort-cuda", dtype, policy)
    assert taking(lowered) == TAKES
    assert {site.recipe for site in lowered.sites if site.site in TAKES} == {"microsoft.BiasGelu(x, bias)"}


@pytest.mark.parametrize("shape", [(2, 8), (2, 5, 8)])
def test_equal_biases_of_a_net_that_is_not_trained(tmp_path, shape):
    net, x = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)]), torch.randn(shape)
    for layer, _ in net:
        nn.init.zeros_(layer.bias)
    report = export_onnx(net, tmp_path / "net.onnx", x, target="ort-cuda")
    assert report.census["com.microsoft::BiasGelu"] == 3
    assert check_parity(net, tmp_path / "net.onnx", input_sample=x).passed


@pytest.mark.parametrize(
    ("target", "others"),
    [
        ("portable", {}),
        ("ort-cpu", {}),
        ("tensorrt", {}),
        ("ort-cuda", {"dtype": "bf16"}),
        ("ort-cuda", {"dtype": "fp16"}),
        ("ort-cuda", {"lowering": "native"}),
        ("ort-cuda", {"dtype": "fp16", "policy": "fast", "keep_fp32": ["Gemm", "MatMul", "Add"]}),
    ],
)
def test_elsewhere_it_does_not(several, target, others):
    graph, lowered = several.lowered(target, **others)
    assert taking(lowered) == {}
    assert "com.microsoft" not in graph.graph.opset_imports


@pytest.mark.parametrize(("dtype", "places"), [("fp32", 2), ("fp16", 4)])
def test_values_are_those_of_the_plain_form(several, dtype, places):
    """Units in the last place of the largest output, by float32's arithmetic of sums in another order."""
    kind = {"fp32": np.float32, "fp16": np.float16}[dtype]
    plain = outputs(several.lowered("portable", dtype, "fast")[0], kind)
    biased = outputs(several.lowered("ort-cuda", dtype, "fast")[0], kind)
    assert plain.keys() == biased.keys()
    for name, values in plain.items():
        step = np.spacing(np.abs(values).max().astype(kind))
        np.testing.assert_allclose(biased[name], values, rtol=0, atol=places * float(step), err_msg=name)


def of_cuda_in_float16(x):
    """BiasGelu of onnxruntime 1.31's CUDA provider in float16, with a bias of 0: `_Gelu` in cu_inc/common.cuh."""
    half, alpha = np.float16(0.5), np.float16(math.sqrt(0.5))
    return x * half * (np.float16(1) + special.erf((alpha * x).astype(np.float64)).astype(np.float16))


def test_why_none_in_float16_under_strict():
    """The transcription gives the two figures that an H200 gave, and misses the tail by all of its value."""
    x = np.arange(-(2**15), 2**15).astype(np.int16).view(np.float16)
    x = x[np.isfinite(x)]
    exact = x.astype(np.float64) * special.ndtr(x.astype(np.float64))
    with np.errstate(over="ignore"):
        errors = np.abs(of_cuda_in_float16(x).astype(np.float64) - exact)
    scaled = errors / np.maximum(1, np.abs(exact))
    assert scaled.max() == 0.0008373090702873268
    assert x[scaled.argmax()] == 1.1875
    assert errors[np.abs(x) <= 6].max() == 0.001922420664202118
    (worst,) = np.flatnonzero(x == np.float16(-3.66796875))
    recipes = TABLE["gelu(approximate='none')"]
    choice = policy.choose(recipes, Target("ort-cuda", "fp16"), 20)
    allowed = policy.ulp_bound(choice) * np.spacing(np.float16(-exact[worst])) + policy.absolute_error(recipes, choice)
    assert errors[worst] == pytest.approx(-exact[worst], rel=1e-2)
    assert errors[worst] > 1000 * allowed


@pytest.mark.parametrize("target", ["portable", "ort-cuda"])
def test_nor_can_onnxruntime_make_one(several, target):
    """Its BiasGeluFusion takes a bias of one dimension: there each is a row."""
    graph, _ = several.lowered(target, "fp16")
    shapes = []
    for node in graph.graph:
        if node.op_type == "Gelu" and node.inputs[0].producer().op_type == "Add":
            bias = next(value for value in node.inputs[0].producer().inputs if value.const_value is not None)
            shapes.append(tuple(bias.const_value.shape))
    assert shapes == [(1, 16)]  # "sequence"; the other layers are Gemm and Conv
    assert "sequence.0.bias" not in graph.graph.initializers
    plain, fast = (outputs(several.lowered(target, "fp16", each)[0], np.float16) for each in ("strict", "fast"))
    np.testing.assert_allclose(plain["sequence"], fast["sequence"], rtol=0, atol=4e-3)


def test_the_proof_knows_the_activation_by_its_record(tmp_path):
    """Also alone, where the layer is not there: its bias is then 0."""
    first = [nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten()]
    net, sample = nn.Sequential(*first, nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3)), torch.zeros(2, 3, 4, 4)
    report = export_onnx(net, tmp_path / "net.onnx", sample, target="ort-cuda")
    assert report.activation_census == {"com.microsoft::BiasGelu": 1, "Gelu": 1}
    found = check_parity(net, tmp_path / "net.onnx", input_sample=sample, providers=["CPUExecutionProvider"])
    assert found.passed
    assert [row.inputs for row in found.rows if "BiasGelu" in row.detail] == ["gelu at 4"]
