"""How sessions are opened: TF32 off, optimisations left out, inputs in the file's dtype."""

import onnx
import pytest
import torch
from onnx import TensorProto
from parity_files import activation

from lit_gelu.export.parity.execution import LEVELS, SessionSetup, file_inputs, open_wanted, optimized_graph, run_file
from lit_gelu.export.runtime import CPU, CUDA


def test_levels_and_left_out_optimisations_reach_onnxruntime(tmp_path):
    path = tmp_path / "silu.onnx"
    made, _ = activation("Sigmoid")
    made.graph.node[0].output[0] = "s"
    made.graph.node.append(onnx.helper.make_node("Mul", ["x", "s"], ["y"]))
    onnx.save(made, path)

    def operators(**options):
        return [node.op_type for node in optimized_graph(path, SessionSetup((CPU,), **options)).graph.node]

    assert operators() == ["QuickGelu"]
    assert operators(level="ENABLE_BASIC") == operators(level="DISABLE_ALL") == ["Sigmoid", "Mul"]
    assert operators(disabled=("QuickGeluFusion",)) == ["Sigmoid", "Mul"]
    named = {"optimization.disable_specified_optimizers": "QuickGeluFusion"}
    assert operators(config=named, disabled=("BiasGeluFusion",)) == ["Sigmoid", "Mul"]
    assert [*LEVELS][:: len(LEVELS) - 1] == ["DISABLE_ALL", "ENABLE_ALL"]


def test_inputs_are_rounded_to_what_the_file_takes(tmp_path):
    path = tmp_path / "gelu.onnx"
    onnx.save(activation("Relu", TensorProto.FLOAT16)[0], path)
    predictor, _, notes = open_wanted(path, [CPU], {}, torch.float16)
    assert not notes
    (x,) = file_inputs(predictor, (torch.tensor([1.0001, -2.0]),))
    assert x.dtype == torch.float16
    (y,) = run_file(predictor, (x,))
    assert y.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("providers", [(CUDA, CPU), ((CUDA, {"use_tf32": 1, "device_id": 0}), CPU)])
def test_tf32_is_off_for_a_float32_file_alone(providers, monkeypatch, tmp_path):
    monkeypatch.setattr(SessionSetup, "open", lambda setup, path: setup.providers)
    opened, _, notes = open_wanted(tmp_path, providers, {}, torch.float32)
    assert opened[0][1]["use_tf32"] == 0
    assert len(notes) == 1
    assert open_wanted(tmp_path, providers, {}, torch.float16)[0] == providers[:1]
