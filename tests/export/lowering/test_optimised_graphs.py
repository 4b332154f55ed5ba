"""What the CUDA provider makes of activations and of the layers about them: operators of the optimised graph.

The shipped provider opens the files on stand-in libraries. A change here is a change of speed: more operators are more
kernels.
"""

import onnx
import onnx_ir as ir
import pytest
import stand_in_cuda
import torch
from cuda_nets import SPECS, CudaNets
from torch import nn
from traced_graph import TracedGraph

from lit_gelu import activations
from lit_gelu.export.lowering.kernels import has_contrib_operator
from lit_gelu.export.lowering.policy import cuda_kernels

CELLS = [
    (dtype, policy, nhwc)
    for dtype in ("fp32", "fp16", "bf16")
    for policy in ("strict", "fast")
    for nhwc in (False, True)
    if (dtype, nhwc) != ("bf16", True)
]
NHWC = {"prefer_nhwc": "1"}
NHWC_DOMAIN = "com.ms.internal.nhwc"
# What arranges and counts: it computes no value.
ARRANGING = frozenset({
    "Shape", "Slice", "Concat", "Reshape", "Squeeze", "Unsqueeze", "Split", "Gather", "Expand", "Transpose",
    "MemcpyFromHost", "MemcpyToHost",
})  # fmt: skip

# By net, then by dtype and policy ("fp16 strict"), by dtype or by policy; "" is for all others.
ACTIVATIONS = {
    "gelu": {"": "Gelu"},
    "gelu tanh": {"16 strict": "Cast Gelu Cast", "": "Gelu"},
    "gelu sigmoid": {
        "16 strict": "Cast Mul Exp Add Div Cast",
        "bf16 fast": "Mul Sigmoid Mul",
        "": "QuickGelu",
    },
    "learnable gelu": {"16 strict": "Cast Sub Div Erf Add Mul Mul Cast", "": "Sub Div Erf Add Mul Mul"},
    "silu": {"16 strict": "ScaledSiLU", "": "QuickGelu"},
    "mish": {"16 strict": "Cast Softplus Tanh Mul Cast", "": "Softplus Tanh Mul"},
    "elu": {
        "16 strict": "Cast Min Mul Tanh Sub Div Mul Relu Add Cast",
        "bf16 fast": "Min Exp Sub Mul Relu Add",
        "": "Elu",
    },
    "softplus": {"16 strict": "Cast Softplus Cast", "": "Softplus"},
    "hard swish": {"16 strict": "Cast HardSwish Cast", "": "HardSwish"},
}
NETS = {
    "linear": {"fp16 strict": "Gemm Gelu Gemm", "bf16": "Gemm Gelu Gemm", "": "MatMul BiasGelu Gemm"},
    "linear tanh": {"16 strict": "Gemm Cast Gelu Cast Gemm", "": "Gemm Gelu Gemm"},
    "linear of sequences": {"fp16 strict": "MatMul Add Gelu MatMul Add", "": "MatMul BiasGelu MatMul Add"},
}
_ATTENTION = "LayerNormalization MatMul Add FusedMatMul Softmax MatMul Gemm Add"
_BLOCK = f"{_ATTENTION} LayerNormalization MatMul BiasGelu MatMul Add Add"
_APART = _BLOCK.replace("BiasGelu", "Add Gelu")  # in float16 BiasGelu is not accurate
SEQUENCES = {
    "encoder": {"fp16 strict": _APART, "": _BLOCK},
    "vision transformer": {"fp16 strict": f"Conv {_APART} Gemm", "": f"Conv {_BLOCK} Gemm"},
}
CONVOLUTIONS = {
    "convolutions": {
        "nhwc": "Transpose nhwc:Conv Gelu nhwc:Conv Gelu nhwc:Conv Transpose",
        "": "Conv Gelu Conv Gelu Conv",
    },
    "convolutions tanh": {
        "fp16 strict nhwc": "Transpose nhwc:Conv Cast Gelu Cast nhwc:Conv Cast Gelu Cast nhwc:Conv Transpose",
        "nhwc": "Transpose nhwc:Conv Gelu nhwc:Conv Gelu nhwc:Conv Transpose",
        "16 strict": "Conv Cast Gelu Cast Conv Cast Gelu Cast Conv",
        "": "Conv Gelu Conv Gelu Conv",
    },
    "convolution 1-D": {"nhwc": "Transpose nhwc:Conv Gelu Transpose", "": "Conv Gelu"},
}


# In files with layout="nhwc": their sessions have prefer_nhwc.
IN_NHWC = {
    "convolutions": "Transpose nhwc:Conv BiasGelu nhwc:Conv BiasGelu nhwc:Conv Transpose",
    "convolutions tanh": "Transpose nhwc:Conv Gelu nhwc:Conv Gelu nhwc:Conv Transpose",
    "convolution 1-D": "Transpose nhwc:Conv Gelu Transpose",
}


def expected(lines, dtype, policy, nhwc):
    """The first line all of whose words fit the cell: "16" is float16 and bfloat16."""
    cell = {dtype, policy, *(["nhwc"] if nhwc else []), *(["16"] if dtype != "fp32" else [])}
    return next(operators for words, operators in lines.items() if set(words.split()) <= cell)


@pytest.fixture(scope="module")
def optimised(tmp_path_factory):
    """The optimised graph of each cell; all are opened in one process."""
    stand_in_cuda.require_tools()
    folder = tmp_path_factory.mktemp("optimised")
    libraries = stand_in_cuda.build(tmp_path_factory.mktemp("stand_in_cuda"))
    traced, files = TracedGraph(CudaNets()), []
    for options in ({}, NHWC):
        path = folder / f"layout_{len(options)}.onnx"
        ir.save(traced.lowered("ort-cuda", "fp16", "fast", layout="nhwc")[0], path)
        files.append((path, options))
    for dtype, policy, nhwc in [*CELLS, ("bf16", "strict", True)]:
        path = folder / f"{dtype}_{policy}_{nhwc}.onnx"
        ir.save(traced.lowered("ort-cuda", dtype, policy)[0], path)
        files.append((path, NHWC if nhwc else {}))
    without, nhwc, *found, refused = stand_in_cuda.optimised_files(libraries, files)
    graphs = {cell: onnx.load(entry["optimised"]).graph for cell, entry in zip(CELLS, found, strict=True)}
    layouts = {name: onnx.load(entry["optimised"]).graph for name, entry in (("nchw", without), ("nhwc", nhwc))}
    return graphs | layouts | {"refused": refused}


def operators(graph, output):
    """The operators that an output is computed by, in order."""
    wanted, names = {output}, []
    for node in reversed(graph.node):
        if wanted & set(node.output):
            wanted.update(node.input)
            names.append(f"nhwc:{node.op_type}" if node.domain == NHWC_DOMAIN else node.op_type)
    return names[::-1]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_activations_and_linear_layers(optimised, cell):
    nets = {**ACTIVATIONS, **NETS}
    found = {name: " ".join(operators(optimised[cell], name)) for name in nets}
    assert found == {name: expected(lines, *cell) for name, lines in nets.items()}


@pytest.mark.parametrize("cell", [cell for cell in CELLS if not cell[2]], ids=str)
def test_transformers_but_for_what_arranges(optimised, cell):
    """Nothing is copied between host and device."""
    for name, lines in SEQUENCES.items():
        found = operators(optimised[cell], name)
        assert not [operator for operator in found if operator.startswith("Memcpy")]
        assert " ".join(each for each in found if each not in ARRANGING) == expected(lines, *cell)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_convolutions_have_transposes_at_both_ends_alone(optimised, cell):
    found = {name: " ".join(operators(optimised[cell], name)) for name in CONVOLUTIONS}
    assert found == {name: expected(lines, *cell) for name, lines in CONVOLUTIONS.items()}


def test_the_provider_has_no_bfloat16_convolution_in_nhwc(optimised):
    """onnxruntime refuses the file: no wish for NHWC may be in one."""
    assert "Type 'tensor(bfloat16)'" in optimised["refused"]["error"]
    assert "(Conv)" in optimised["refused"]["error"]


def test_a_file_for_nhwc_has_transposes_at_both_ends_alone_if_its_wish_is_granted(optimised):
    """Else those about each GELU stay: the plain form is the right one for such sessions."""
    assert {name: " ".join(operators(optimised["nhwc"], name)) for name in IN_NHWC} == IN_NHWC
    plain = operators(optimised["nchw"], "convolutions")
    assert plain == ["Conv", "Transpose", "BiasGelu", "Transpose"] * 2 + ["Conv"]


class Each(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleDict({name: activations.create(spec) for name, spec in SPECS.items()})
        self.example_input_array = torch.zeros(2, 8)

    def forward(self, x):
        return {name: net(x) for name, net in self.nets.items()}


@pytest.fixture(scope="module")
def each():
    return TracedGraph(Each())


@pytest.mark.skipif(
    not has_contrib_operator("com.microsoft::ScaledSiLU"), reason="the counts are of the newest onnxruntime's recipes"
)
@pytest.mark.parametrize("policy", ["strict", "fast"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_costs(each, dtype, policy):
    _, lowered = each.lowered("ort-cuda", dtype, policy)
    for site, (name, lines) in zip(lowered.sites, ACTIVATIONS.items(), strict=True):
        assert site.site == f"nets.{name}"
        count = len(expected(lines, dtype, policy, False).split())
        assert cuda_kernels(site.operators, dtype) == count
        stated = [note for note in lowered.notes if note.startswith(f"{site.row} is {count} kernels on CUDA")]
        assert len(stated) == (count > 1)


def test_the_note_says_what_is_fewer(each):
    notes = each.lowered("ort-cuda", "fp16")[1].notes
    (note,) = [note for note in notes if "approximate='tanh'" in note]
    assert "3 kernels on CUDA; policy='fast' is 1; largest error 2.0e-3 (fp16)" in note
    assert "approximate='none' is 1 kernel, and at most 4.8e-4 away." in note
    assert each.lowered("ort-cpu", "fp16")[1].notes == ()
