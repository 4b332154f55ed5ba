"""Targets of Reshape and Expand are constants where shapes tell them: by hand, and at random."""

import math

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from lit_gelu.export.trace import expand_target, fold_shape_arithmetic, reshape_target

EMPTY = {"batch"}


@pytest.mark.parametrize(
    ("before", "sizes", "target"),
    [
        (["batches", "h", "w"], ["batches", "h*w"], [0, -1]),
        (["batch", "h", "w"], ["batch", "h*w"], []),  # of no values -1 is nothing, and a batch may be empty
        ([None, "time", 8], [None, "time", 2, 4], [-1, 0, 2, 4]),
        ([None, None, 8], [None, None, 2, 4], []),  # sizes without a name are not the same
        (["batch", 0], [0, "batch"], []),  # 0 would be a copy
        ([], ["batch", 8], [-1, 8]),
        ([], ["batch", "time"], []),
    ],
)
def test_targets_of_reshape(before, sizes, target):
    assert reshape_target(before, sizes, EMPTY) == target


@pytest.mark.parametrize(
    ("before", "sizes", "target"),
    [
        (["batch", 1, "time"], ["batch", 4, "time"], [1, 4, 1]),
        (["time"], [3, 2, "time"], [3, 2, 1]),
        ([1, 3], [2, 3], [2, 1]),
        ([1, "time"], ["batch", "time"], []),
        ([None], [None], []),
    ],
)
def test_targets_of_expand(before, sizes, target):
    assert expand_target(before, sizes) == target


TEXT = """<ir_version: 10, opset_import: ["": 20, "my": 1]> g ({x}) => ({y}) <
    int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] minus = {{-1}}, int64[1] before = {{-2}},
    int64[1] start = {{-9223372036854775808}}, int64[1] end = {{9223372036854775807}}, int64[1] zero = {{0}},
    float[2] floats = {{1.5, 2.5}}, int32[2] int32s = {{1, 2}} {noted}> {{ {body} }}"""


def folded(body, y="float[batch, time, 2, 4] y", noted="", x="float[batch, time, 8] x"):
    """The operators that are left of a graph in ONNX's text format, with the numbers that their targets are."""
    model = ir.from_onnx_text(TEXT.format(x=x, y=y, noted=noted and f", {noted}", body=body))
    fold_shape_arithmetic(model, EMPTY)
    return {node.op_type: numbers_in(node) for node in model.graph}


def numbers_in(node):
    values = [value.const_value for value in node.inputs[1:2]]
    return values[0].numpy().tolist() if values and values[0] is not None else None


def test_sizes_that_are_all_numbers_go_into_any_operator():
    body = "s = Shape (x) c = Slice (s, minus, end) t = Concat <axis = 0> (two, four, c) y = Tile (x, t)"
    assert folded(body, "float[a, b, 64] y") == {"Tile": [2, 4, 8]}


def test_an_expand_leaves_what_is_there():
    body = "s = Shape (x) t = Concat <axis = 0> (two, s) y = Expand (x, t)"
    assert folded(body, "float[2, batch, time, 8] y") == {"Expand": [2, 1, 1, 1]}


# As torch writes the transpose of a key, whatever its rank.
KEY = """s = Shape (x) columns = Slice (s, minus, end) rows = Slice (s, before, minus) others = Slice (s, start, before)
    three = Concat <axis = 0> (minus, rows, columns) whole = Concat <axis = 0> (others, columns, rows)
    r = Reshape (x, three) t = Transpose <perm = [0, 2, 1]> (r) k = Reshape (t, whole) y = Relu (k)"""
NOTED = "float[?, ?, ?] r, float[?, ?, ?] t, float[?, ?, ?, ?] k"
KEYS = {"x": "float[batch, 2, time, 4] x", "y": "float[batch, 2, 4, time] y", "noted": NOTED}


def test_a_key_is_transposed_directly():
    model = ir.from_onnx_text(TEXT.format(body=KEY, **KEYS | {"noted": f", {NOTED}"}))
    before = ReferenceEvaluator(ir.to_proto(model))
    fold_shape_arithmetic(model, EMPTY)
    assert [node.op_type for node in model.graph] == ["Transpose", "Relu"]
    for batch, time in ((1, 1), (2, 5), (3, 2)):
        x = torch.randn(batch, 2, time, 4).numpy()
        (y,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
        assert (y == x.swapaxes(2, 3).clip(0)).all()
        assert (y == before.run(None, {"x": x})[0]).all()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[0, 2, 1]", "[0, 1, 2]"),
        ("(minus, rows, columns)", "(minus, columns, rows)"),
        ("Relu (k)", "Add (k, k) z = Relu (t)"),  # someone else reads the Transpose
        ("Relu (k)", "Add (k, k) z = Relu (r)"),
        ("(t, whole)", "(z, whole)"),  # the graph gives it
    ],
)
def test_what_only_looks_like_a_key_stays(old, new):
    graph = KEYS | {"y": f"{KEYS['y']}, float[?, ?, ?] z"} if "z" in new else KEYS
    body = KEY.replace(old, new).replace(" t = ", " z = " if "(z" in new else " t = ")
    assert "Reshape" in folded(body, **graph)


@st.composite
def reshapes(draw):
    """Two shapes of the same values; each size is a product of letters and numbers."""

    def grouped(factors):
        cuts = sorted(draw(st.sets(st.integers(1, len(factors) - 1)))) if len(factors) > 1 else []
        return [sorted(factors[a:b]) for a, b in zip([0, *cuts], [*cuts, len(factors)], strict=True)]

    factors = draw(st.lists(st.sampled_from(["batch", "h", "w", "2", "3"]), min_size=1, max_size=6))
    return grouped(factors), grouped(draw(st.permutations(factors)))


def named(factors):
    """A size's number, or its name as torch writes it."""
    letters = [factor for factor in factors if not factor.isdecimal()]
    number = math.prod(int(factor) for factor in factors if factor.isdecimal())
    return "*".join([*([str(number)] if number > 1 else []), *letters]) if letters else number


def length(factors, sizes):
    return math.prod(int(factor) if factor.isdecimal() else sizes[factor] for factor in factors)


@given(shapes=reshapes())
def test_a_folded_reshape_makes_the_same_at_any_size(shapes):
    """Also of an empty batch; and it computes nothing where one size at most is not known."""
    shape, like = ([named(size) for size in sizes] for sizes in shapes)
    x, other, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)
        for name, sizes in (("x", shape), ("like", like), ("y", like))
    )
    nodes = [helper.make_node("Shape", ["like"], ["s"]), helper.make_node("Reshape", ["x", "s"], ["y"], allowzero=1)]
    opsets = [helper.make_opsetid("", 20)]
    proto = helper.make_model(helper.make_graph(nodes, "g", [x, other], [y]), opset_imports=opsets)
    model = ir.from_proto(proto)
    fold_shape_arithmetic(model, EMPTY)
    computed = [node.op_type for node in model.graph] != ["Reshape"]
    assert not (computed and sum(isinstance(size, str) for size in like) <= 1)
    run = ReferenceEvaluator(ir.to_proto(model)).run
    for batch, h, w in ((2, 5, 7), (1, 1, 1), (0, 2, 3), (4, 2, 1)):
        sizes = {"batch": batch, "h": h, "w": w}
        before, after = ([length(size, sizes) for size in each] for each in shapes)
        values = np.arange(math.prod(before), dtype=np.float32)
        (output,) = run(None, {"x": values.reshape(before), "like": np.zeros(after, np.float32)})
        assert (output == values.reshape(after)).all()
        assert list(output.shape) == after
