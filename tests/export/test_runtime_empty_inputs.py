"""Empty inputs: refused where onnxruntime would end the process, and passed on everywhere else."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

from lit_gelu.export import ModelInputError, OnnxPredictor
from lit_gelu.export.runtime.empty_inputs import never_empty_inputs

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SIZE = 4


def saved(path, operator, place, *, others=()):
    """Write a recurrent net over ``x``, and what else there is over ``other``."""
    rng = np.random.default_rng(0)
    sizes = {"w": (1, GATES[operator] * SIZE, 3), "r": (1, GATES[operator] * SIZE, SIZE)}
    weights = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), name) for name, s in sizes.items()]
    node = helper.make_node(operator, ["x", "w", "r"], ["y"], hidden_size=SIZE)
    opsets, functions = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)], []
    if place == "function":
        # A function that calls another one, which stands behind it.
        call = helper.make_node("Inner", ["x", "w", "r"], ["y"], domain="f")
        functions = [
            helper.make_function("f", "Outer", ["x", "w", "r"], ["y"], [call], opsets),
            helper.make_function("f", "Inner", ["x", "w", "r"], ["y"], [node], opsets),
        ]
        node = helper.make_node("Outer", ["x", "w", "r"], ["y"], domain="f")
    if place == "branch":
        y = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        branch = helper.make_graph([node], "branch", [], y)
        node = helper.make_node("If", ["always"], ["y"], then_branch=branch, else_branch=branch)
        weights.append(numpy_helper.from_array(np.array(True), "always"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, "batch", 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 1, "batch", SIZE])]
    if others:
        inputs.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["others", 3]))
        outputs.append(helper.make_tensor_value_info("total", TensorProto.FLOAT, []))
    graph = helper.make_graph([node, *others], "net", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def rows(count):
    return np.ones((5, count, 3), np.float32)


@pytest.mark.parametrize("place", ["graph", "function", "branch"])
@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_where_the_process_would_end_they_are_refused(tmp_path, operator, place):
    path = saved(tmp_path / "net.onnx", operator, place)
    assert never_empty_inputs(onnx.load(path)) == {"x"}  # first, for a failure of this one ends no test run
    predictor = OnnxPredictor(path, ["CPUExecutionProvider"])
    for _ in range(2):  # a predictor learns a quicker way
        assert predictor(rows(2)).shape == (5, 1, 2, SIZE)
        with pytest.raises(ModelInputError, match=r"'x' has shape \(5, 0, 3\), which holds no values"):
            predictor(rows(0))


def test_an_lstm_in_int8_is_one_too(tmp_path):
    saved(tmp_path / "net.onnx", "LSTM", "graph")
    quantize_dynamic(tmp_path / "net.onnx", tmp_path / "int8.onnx", op_types_to_quantize=["LSTM"])
    model = onnx.load(tmp_path / "int8.onnx")
    assert [node.op_type for node in model.graph.node] == ["DynamicQuantizeLSTM"]
    assert never_empty_inputs(model) == {"x"}
    predictor = OnnxPredictor(tmp_path / "int8.onnx", ["CPUExecutionProvider"])
    with pytest.raises(ModelInputError, match="which holds no values"):
        predictor(rows(0))


def test_the_rnn_of_onnxruntime_takes_them(tmp_path):
    path = saved(tmp_path / "net.onnx", "RNN", "function")
    assert OnnxPredictor(path, ["CPUExecutionProvider"])(rows(0)).shape == (5, 1, 0, SIZE)


def test_an_empty_input_that_does_not_reach_the_lstm_is_taken(tmp_path):
    total = helper.make_node("ReduceSum", ["other"], ["total"], keepdims=0)
    predictor = OnnxPredictor(saved(tmp_path / "net.onnx", "LSTM", "graph", others=[total]), ["CPUExecutionProvider"])
    y, found = predictor(rows(2), np.ones((0, 3), np.float32))
    assert (y.shape, found) == ((5, 1, 2, SIZE), 0)
    with pytest.raises(ModelInputError, match=r"'x' has shape \(5, 0, 3\)"):
        predictor(rows(0), np.ones((1, 3), np.float32))


def test_weights_of_old_files_are_no_inputs(tmp_path):
    model = onnx.load(saved(tmp_path / "net.onnx", "LSTM", "graph"))
    model.graph.input.extend(
        helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims) for weight in model.graph.initializer
    )
    onnx.save(model, tmp_path / "old.onnx")
    predictor = OnnxPredictor(tmp_path / "old.onnx", ["CPUExecutionProvider"])
    with pytest.raises(ModelInputError, match="'x' has shape"):
        predictor(rows(0))


def test_one_input_keeps_the_quick_way(tmp_path):
    predictor = OnnxPredictor(saved(tmp_path / "net.onnx", "LSTM", "graph"), ["CPUExecutionProvider"])
    assert predictor._opened.quick(rows(2)).shape == (5, 1, 2, SIZE)
    assert predictor._opened.quick(rows(0)) is None
