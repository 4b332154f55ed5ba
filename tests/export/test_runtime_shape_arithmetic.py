"""Which nodes on the CPU compute nothing but sizes, on graphs written by hand."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from lit_gelu.export.runtime.placement import PlacedNode, without_shape_arithmetic

CPU = "CPUExecutionProvider"


def saved(folder, *nodes, constants=("two",)):
    """``(operator, inputs, outputs)``, each node named by its first output."""
    made = [helper.make_node(operator, inputs, outputs, name=outputs[0]) for operator, inputs, outputs in nodes]
    weights = [numpy_helper.from_array(np.array([2]), name) for name in constants]
    graph = helper.make_graph(made, "g", [], [], weights)
    onnx.save(helper.make_model(graph), folder / "net.onnx")
    return folder / "net.onnx"


def strays(path, *names):
    """Of the named nodes, those that count as a fallback."""
    placed = [PlacedNode(CPU, "Any", name) for name in names]
    return [node.name for node in without_shape_arithmetic(path, placed)]


SIZES = ("Shape", ["x"], ["s"]), ("Slice", ["s", "two", "two"], ["part"]), ("Concat", ["part", "two"], ["whole"])


@pytest.mark.parametrize(
    "reader", [("Reshape", 1), ("Expand", 1), ("Slice", 2), ("Range", 1), ("Resize", 3), ("Tile", 1)]
)
def test_sizes_that_end_in_host_memory(tmp_path, reader):
    operator, position = reader
    inputs = ["y"] * 4
    inputs[position] = "whole"
    path = saved(tmp_path, *SIZES, (operator, inputs, ["z"]))
    assert strays(path, "part", "whole") == []


def test_sizes_that_become_data(tmp_path):
    path = saved(tmp_path, *SIZES, ("Mul", ["y", "whole"], ["z"]), ("Reshape", ["y", "part"], ["w"]))
    assert strays(path, "whole") == ["whole"]
    assert strays(path, "part", "whole") == ["part", "whole"]  # the one feeds the other


def test_data_are_no_sizes_although_they_end_in_a_shape(tmp_path):
    path = saved(
        tmp_path,
        ("ReduceSum", ["x"], ["sum"]),
        ("Concat", ["sum", "two"], ["whole"]),
        ("Reshape", ["y", "whole"], ["z"]),
    )
    assert strays(path, "sum", "whole") == ["sum", "whole"]
    assert strays(path, "whole") == ["whole"]


def test_an_operator_of_another_domain_reads_the_device(tmp_path):
    path = saved(tmp_path, *SIZES, ("Reshape", ["y", "whole"], ["z"]))
    model = onnx.load(path)
    model.graph.node[-1].domain = "my.operators"
    onnx.save(model, path)
    assert strays(path, "part", "whole") == ["part", "whole"]


def test_nodes_that_the_file_has_not(tmp_path):
    path = saved(tmp_path, *SIZES)
    assert strays(path, "part", "whole", "fused", "") == ["fused", ""]
    assert without_shape_arithmetic(tmp_path / "missing.onnx", []) == ()


def test_a_gather_that_onnxruntime_makes_is_of_sizes(tmp_path):
    """It makes one where it moves a Transpose past a Shape; one of the file is judged like any node."""
    path = saved(tmp_path, ("Gather", ["y", "two"], ["rows"]), ("Mul", ["rows", "y"], ["z"]))
    placed = [PlacedNode(CPU, "Gather", name) for name in ("Gather", "Gather_token_7", "rows")]
    assert without_shape_arithmetic(path, placed) == (placed[2],)
