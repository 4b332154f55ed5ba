"""GELU's form by site; gated functions; tanh GELU and onnxruntime's offline optimizer."""

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.export import OnnxPredictor, export_onnx


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
