"""What the CUDA provider makes of activations and of the layers about them: operators of the optimised graph.

The shipped provider opens the files on stand-in libraries. A change here is a change of speed: more operators are more
kernels.
"""

import onnx
import onnx_ir as ir
import pytest
import stand_in_cuda
from cuda_nets import CudaNets
from traced_graph import TracedGraph

from lit_gelu.export.lowering.policy import has_contrib_operator

CELLS = [(dtype, policy) for dtype in ("fp32", "fp16", "bf16") for policy in ("strict", "fast")]
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
    "linear": {"": "Gemm Gelu Gemm"},
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
    "convolutions": {"": "Conv Gelu Conv Gelu Conv"},
    "convolutions tanh": {"16 strict": "Conv Cast Gelu Cast Conv Cast Gelu Cast Conv", "": "Conv Gelu Conv Gelu Conv"},
    "convolution 1-D": {"": "Conv Gelu"},
}


def expected(lines, dtype, policy):
    """The first line all of whose words fit the cell: "16" is float16 and bfloat16."""
    cell = {dtype, policy, *(["16"] if dtype != "fp32" else [])}
    return next(operators for words, operators in lines.items() if set(words.split()) <= cell)


@pytest.fixture(scope="module")
def optimised(tmp_path_factory):
    """The optimised graph of each cell; all are opened in one process."""
    stand_in_cuda.require_tools()
    folder = tmp_path_factory.mktemp("optimised")
    libraries = stand_in_cuda.build(tmp_path_factory.mktemp("stand_in_cuda"))
    traced, files = TracedGraph(CudaNets()), []
    for dtype, policy in CELLS:
        path = folder / f"{dtype}_{policy}.onnx"
        ir.save(traced.lowered("ort-cuda", dtype, policy)[0], path)
        files.append((path, {}, {}))
    found = stand_in_cuda.opened(libraries, files)
    return {cell: onnx.load(entry["optimised"]).graph for cell, entry in zip(CELLS, found, strict=True)}


def operators(graph, output):
    """The operators that an output is computed by, in order."""
    needed, names = {output}, []
    for node in reversed(graph.node):
        if needed & set(node.output):
            needed.update(node.input)
            names.append(node.op_type)
    return names[::-1]


@pytest.mark.skipif(
    not has_contrib_operator("com.microsoft::ScaledSiLU"),
    reason="the operators are those of the newest onnxruntime",
)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_activations_and_the_layers_about_them(optimised, cell):
    nets = {**ACTIVATIONS, **NETS, **CONVOLUTIONS}
    found = {name: " ".join(operators(optimised[cell], name)) for name in nets}
    assert found == {name: expected(lines, *cell) for name, lines in nets.items()}


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_transformers_but_for_what_arranges(optimised, cell):
    """Nothing is copied between host and device."""
    for name, lines in SEQUENCES.items():
        found = operators(optimised[cell], name)
        assert not [operator for operator in found if operator.startswith("Memcpy")]
        assert " ".join(each for each in found if each not in ARRANGING) == expected(lines, *cell)
