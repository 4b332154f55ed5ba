"""What onnxruntime's CUDA kernels compute in float16, transcribed: why strict files have float32, and no BiasGelu."""

import math

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from scipy import special
from torch import nn
from traced_graph import TracedGraph

from lit_gelu.export.lowering import policy
from lit_gelu.export.lowering.lowering_table import TABLE
from lit_gelu.export.lowering.policy import Target


class Several(nn.Module):
    """A GELU behind layers whose bias is an Add, a part of a Gemm, and of a Conv."""

    def __init__(self):
        super().__init__()
        self.example_input_array = (torch.zeros(2, 8), torch.zeros(2, 5, 8), torch.zeros(2, 4, 6, 7))
        self.image = nn.Sequential(nn.Conv2d(4, 8, 3), nn.GELU())
        self.matrix, self.sequence = (nn.Sequential(nn.Linear(8, 16), nn.GELU()) for _ in range(2))

    def forward(self, x, sequences, images):
        return {"image": self.image(images), "matrix": self.matrix(x), "sequence": self.sequence(sequences)}


def outputs(graph):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    proto = ir.to_proto(graph).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    fed = {port.name: generator.normal(0, 2, (7, *port.shape[1:])).astype(np.float16) for port in session.get_inputs()}
    return dict(zip([port.name for port in session.get_outputs()], session.run(None, fed), strict=True))


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
def test_onnxruntime_can_make_none(target):
    """Its BiasGeluFusion takes a bias of one dimension: there each is a row."""
    several = TracedGraph(Several())
    graph, _ = several.lowered(target, "fp16")
    shapes = []
    for node in graph.graph:
        if node.op_type == "Gelu" and node.inputs[0].producer().op_type == "Add":
            bias = next(value for value in node.inputs[0].producer().inputs if value.const_value is not None)
            shapes.append(tuple(bias.const_value.shape))
    assert shapes == [(1, 16)]  # "sequence"; the other layers are Gemm and Conv
    plain, fast = (outputs(several.lowered(target, "fp16", policy)[0]) for policy in ("strict", "fast"))
    np.testing.assert_allclose(plain["sequence"], fast["sequence"], rtol=0, atol=4e-3)


def sigmoid(x):
    """onnxruntime 1.31's `OP_Sigmoid` in cuda/activation/activations_impl.cu, in float16."""
    one = np.float16(1)
    inverse = one / (one + np.exp(-np.abs(x.astype(np.float64))).astype(np.float16))
    return np.where(x > 0, inverse, one - inverse)


def hard_swish(x):
    """Its `OP_HardSigmoid` there, and a product, in float16."""
    return x * np.clip(np.float16(1 / 6) * x + np.float16(0.5), np.float16(0), np.float16(1))


EXACT = {
    "sigmoid": (sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "hard_swish": (hard_swish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
}


@pytest.mark.parametrize("name", EXACT)
def test_cuda_computes_further_off_in_float16_than_strict_allows(name):
    by_cuda, exact_of = EXACT[name]
    x = np.arange(-(2**15), 2**15).astype(np.int16).view(np.float16)
    x = x[np.abs(x) <= 8]
    exact = exact_of(x.astype(np.float64))
    choice = policy.choose(TABLE[name], Target("ort-cuda", "fp16"), 20)
    place = np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64)
    allowed = policy.ulp_bound(choice) * place + policy.absolute_error(TABLE[name], choice)
    errors = np.abs(by_cuda(x).astype(np.float64) - exact)
    assert (errors > allowed).sum() > 100
    assert choice.in_fp32
