"""GELU's form by site; gated functions; tanh GELU and onnxruntime's offline optimizer."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.errors import ArgumentError
from lit_gelu.export import OnnxPredictor, export_onnx


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.GELU())
        self.head = nn.Sequential(nn.Linear(4, 4), nn.GELU("tanh"), nn.SiLU())
        self.example_input_array = torch.zeros(2, 4)

    def forward(self, x):
        return self.head(F.gelu(self.encoder(x)))


def test_forms_by_pattern_are_refused(tmp_path):
    with pytest.raises(ArgumentError):
        export_onnx(Blocks(), tmp_path / "a.onnx", approximate={"encoder.*": "tanh"})
    assert not list(tmp_path.iterdir())


class Gates(nn.Module):
    def __init__(self):
        super().__init__()
        names = ("glu", "reglu", "geglu", "geglu(approximate='tanh')", "swiglu", "swiglu(beta=1.5)")
        self.gates = nn.ModuleList([activations.create(name) for name in names])
        self.example_input_array = torch.zeros(2, 8)

    def forward(self, x):
        return tuple(gate(x) for gate in self.gates)


INNER = {
    ("portable", "fp32"): ["sigmoid", None, "gelu(approximate='none')", "gelu(approximate='tanh')", "silu", "swish"],
}


@pytest.mark.parametrize(("dtype", "regions"), [("fp32", 0), ("fp16", 4)])
def test_gated_functions_are_a_split_the_inner_activation_and_a_product(tmp_path, dtype, regions):
    """The inner activation is that of the table: in fp16 the sigmoid, tanh and Swish gates stand in float32."""
    path = tmp_path / "gates.onnx"
    report = export_onnx(Gates(), path, dtype=dtype)
    rows = {site.row: site for site in report.sites if site.calls}
    assert set(rows) == {"relu", *filter(None, INNER["portable", "fp32"])}  # reglu's is Relu in every file
    assert report.census["Split"] == 2  # torch shares them: one for glu, whose halves are the other way round
    assert report.census.get("Cast", 0) == 2 * regions
    x = torch.randn(64, 8)
    fed = x.half().numpy() if dtype == "fp16" else x.numpy()
    with torch.no_grad():
        exact = Gates().double()(torch.from_numpy(fed.astype(np.float64)))
    for y, y64 in zip(OnnxPredictor(path)(fed), exact, strict=True):
        limit = 1e-5 if dtype == "fp32" else 2e-2
        assert np.abs(y - y64.numpy()).max() < limit


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU("tanh"), nn.Linear(16, 8)
        self.example_input_array = torch.randn(2, 3, 8)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


@pytest.mark.parametrize(("lowering", "kept"), [("native", False), ("primitives", True)])
def test_the_offline_optimizer_of_onnxruntime_makes_tanh_gelu_exact_unless_it_is_primitives(tmp_path, lowering, kept):
    """Its fusion of a bias and Gelu does not read approximate='tanh'. The runtime's own fusion does."""
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    model, path = FeedForward(), tmp_path / "tanh.onnx"
    export_onnx(model, path, lowering=lowering)
    x = 3 * torch.randn(16, 3, 8)
    with torch.no_grad():
        exact = model.double()(x.double()).numpy()
    assert np.abs(OnnxPredictor(path)(x.numpy()) - exact).max() < 1e-5
    optimised = optimizer.optimize_model(str(path), model_type="bert", num_heads=1, hidden_size=8, opt_level=0)
    proto = optimised.model.SerializeToString()
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    error = np.abs(session.run(None, {"x": x.numpy()})[0] - exact).max()
    assert (error < 1e-5) == kept
    names = {node.op_type for node in onnx.load_from_string(proto).graph.node}
    assert names & ({"FastGelu"} if kept else {"BiasGelu"})
