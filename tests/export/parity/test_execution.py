"""How sessions are opened: TF32 apart, optimisations left out, inputs in the file's dtype."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from parity_files import activation
from torch import nn

from lit_gelu.export import OnnxPredictor, check_parity, export_onnx
from lit_gelu.export.parity.activation_census import optimized_graph
from lit_gelu.export.parity.execution import LEVELS, SessionSetup, file_inputs, open_wanted, run_file
from lit_gelu.export.runtime import CPU, CUDA


@pytest.mark.parametrize(
    "providers",
    [(CUDA, CPU), ((CUDA, {"use_tf32": 1, "device_id": 0}), CPU), ((CUDA, {"use_tf32": 0}),)],
)
def test_tf32_is_set_on_cuda_alone(providers):
    off, on = (SessionSetup(providers).with_tf32(on=on) for on in (False, True))
    assert off.providers[0][1]["use_tf32"] == 0
    assert on.providers[0][1]["use_tf32"] == 1
    assert off.providers[1:] == providers[1:]
    given = {} if isinstance(providers[0], str) else providers[0][1]
    assert {key: value for key, value in off.providers[0][1].items() if key != "use_tf32"} == {
        key: value for key, value in given.items() if key != "use_tf32"
    }


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


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        return torch.fft.rfft(self.net(x))


def test_a_complex_output_is_proved_as_the_pairs_that_the_file_gives(tmp_path):
    torch.manual_seed(0)
    net, path, x = Spectrum().eval(), tmp_path / "net.onnx", torch.randn(3, 6)
    (note,) = export_onnx(net, path, x).notes
    assert "complex in the module; in the file it is real" in note
    assert "[3, 5, 2] for [3, 5]" in note
    with torch.no_grad():
        spectrum = np.fft.rfft(net.net(x).numpy())
    pairs = np.stack([spectrum.real, spectrum.imag], -1)
    np.testing.assert_allclose(OnnxPredictor(path, [CPU])(x), pairs, atol=1e-5)
    assert check_parity(net, path, input_sample=x).passed
    with torch.no_grad():
        net.net[0].bias[0] += 0.1
    assert not check_parity(net, path, input_sample=x, strict=False).passed
