"""What onnxruntime makes of each activation, against graphs that it writes."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from parity_files import ON_CPU, model, node
from torch import nn

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.parity.activation_census import fate_counts, fates, optimized_graph, placement
from lit_gelu.export.parity.subgraph import site_nodes
from lit_gelu.export.runtime import CPU

SAMPLE = torch.zeros(2, 5, 6)


def feed_forward(activation):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), activation, nn.Linear(16, 3))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (nn.GELU(), "Gelu(none) -> BiasGelu"),
        (nn.GELU(approximate="tanh"), "Gelu(tanh) -> FastGelu"),
        (nn.SiLU(), "Sigmoid, Mul -> QuickGelu(alpha=1)"),
        (nn.ReLU(), "Relu -> Relu"),
    ],
)
def test_which_activation_became_what(tmp_path, activation, expected):
    net = feed_forward(activation)
    export_onnx(net, tmp_path / "net.onnx", SAMPLE)
    report = check_parity(net, tmp_path / "net.onnx", input_sample=SAMPLE)
    (fate,) = report.activations
    assert str(fate) == expected
    assert (fate.site, fate.call) == ("1", 0)
    assert fate.provider in {CPU, ""} or torch.cuda.is_available()
    operators = {name.removeprefix("com.microsoft::") for name in report.optimized_census}
    assert {name.partition("(")[0] for name in fate.after} <= operators
    assert sum(report.placement.values()) in {0, sum(report.census.values())}


def test_two_activations_that_share_an_input_and_one_that_stays(tmp_path):
    nodes = [
        node("Sigmoid", ["x"], "s", "a"),
        node("Mul", ["x", "s"], "p", "a"),
        node("Elu", ["x"], "e", "b"),
        node("Add", ["p", "e"], "y", None),
    ]
    made = model(nodes)
    path = tmp_path / "file.onnx"
    onnx.save(made, path)
    found = fates(site_nodes(made, {"a": 1, "b": 1}), optimized_graph(path, ON_CPU), placement(path, ON_CPU))
    assert fate_counts(found) == {"Sigmoid, Mul -> QuickGelu(alpha=1)": 1, "Elu -> Elu": 1}


def test_behind_a_reordered_value():
    nodes = [node("Sigmoid", ["x"], "blocked", None), node("ReorderOutput", ["blocked"], "y", None)]
    optimized = helper.make_model(helper.make_graph(nodes, "main", [], []))
    (fate,) = fates(site_nodes(model([node("Sigmoid", ["x"], "y", "act")]), {"act": 1}), optimized, {})
    assert str(fate) == "Sigmoid -> Sigmoid"


def test_behind_the_casts_of_float16_on_a_cpu(tmp_path):
    made = model([node("Mish", ["x"], "y")], element=TensorProto.FLOAT16)
    onnx.save(made, tmp_path / "mish.onnx")
    optimized = optimized_graph(tmp_path / "mish.onnx", ON_CPU)
    assert {n.op_type for n in optimized.graph.node} >= {"Cast", "Tanh"}
    (fate,) = fates(site_nodes(made, {"act": 1}), optimized, {})
    assert fate.after[-1] == "Mul"


def test_an_activation_that_is_folded_away(tmp_path):
    made = model([node("Relu", ["c"], "r"), node("Add", ["x", "r"], "y", None)], {"c": np.float32([1.0])})
    made.graph.initializer[0].name = "c"
    onnx.save(made, tmp_path / "folded.onnx")
    entry = site_nodes(model([node("Relu", ["x"], "r"), node("Add", ["x", "r"], "y", None)]), {"act": 1})
    (fate,) = fates(entry, optimized_graph(tmp_path / "folded.onnx", ON_CPU), {})
    assert fate.after == ()
    assert "no value of the optimised graph" in str(fate)
