"""Where an activation's nodes are in a graph."""

import numpy as np
import onnx
import onnxruntime
from parity_files import model, node

from lit_gelu.export.parity.subgraph import cut_out, site_nodes, sites_in_subgraphs


def silu(x, y, site="act"):
    return [node("Sigmoid", [x], f"s_{y}", site), node("Mul", [x, f"s_{y}"], y, site)]


def found(made, **calls):
    return [(e.site, e.call, [n.op_type for n in e.nodes], e.x, e.y) for e in site_nodes(made, calls)]


def test_nodes_of_one_call_and_their_ends():
    made = model([*silu("x", "a"), node("Neg", ["a"], "y", None)])
    assert found(made, act=1) == [("act", 0, ["Sigmoid", "Mul"], "x", "a")]


def test_two_calls_of_one_site_also_if_they_feed_each_other_or_share_their_input():
    chained = model([*silu("x", "a"), *silu("a", "y")])
    assert [entry[1:] for entry in found(chained, act=2)] == [
        (0, ["Sigmoid", "Mul"], "x", "a"),
        (1, ["Sigmoid", "Mul"], "a", "y"),
    ]
    shared = model([*silu("x", "a"), *silu("x", "b"), node("Add", ["a", "b"], "y", None)])
    assert [entry[3:] for entry in found(shared, act=2)] == [("x", "a"), ("x", "b")]


def test_what_cannot_be_divided_is_left_out():
    assert not found(model([*silu("x", "a"), node("Neg", ["a"], "y")]), act=2)
    assert not found(model(silu("x", "y")), other=1)
    assert not found(model([node("Mul", ["x", "x"], "a", None), node("Add", ["x", "a"], "y")]), act=1)  # two inputs


def test_a_site_that_is_called_within_a_branch_too_is_left_out():
    branch = onnx.helper.make_graph(silu("x", "a"), "branch", [], [onnx.helper.make_empty_tensor_value_info("a")])
    choice = onnx.helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch)
    made = model([*silu("x", "s"), choice, node("Tanh", ["s"], "t", "other"), node("Add", ["t", "b"], "y", None)])
    assert sites_in_subgraphs(made) == {"act"}
    assert [entry[0] for entry in found(made, act=3, other=1)] == ["other"]
    assert [entry[0] for entry in found(made, act=2, other=1)] == ["other"]


def test_the_cut_out_model_computes_what_its_part_computed():
    made = model(
        [
            node("Neg", ["x"], "n", None),
            node("Mul", ["n", "beta"], "b"),
            node("Tanh", ["b"], "t"),
            node("Neg", ["t"], "y", None),
        ],
        {"beta": np.array([[3.0], [4.0]], np.float32)},
    )
    (entry,) = site_nodes(made, {"act": 1})
    cut = cut_out(made, entry)
    session = onnxruntime.InferenceSession(cut.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    np.testing.assert_allclose(session.run(None, {"n": x})[0], np.tanh(3 * x), rtol=1e-5)
