"""`gaussian_gelu` with standard deviation 1 is GELU: one node, without a division and a product by 1."""

import numpy as np
import pytest
import torch
from export_cases import GELU_FORMS, operators_by_site
from torch import nn

from lit_gelu import activations
from lit_gelu.export import OnnxPredictor, export_onnx


@pytest.mark.parametrize("spec", ["gaussian_gelu", "gaussian_gelu(sigma=1.0, learnable=True)"])
def test_one_node_with_the_values_of_the_definition(tmp_path, spec):
    path = tmp_path / "net.onnx"
    report = export_onnx(nn.Sequential(activations.create(spec)), path, torch.zeros(2, 4))
    assert operators_by_site(path) == {"0": ["Gelu"]}
    assert report.sites[0].spec.startswith("gaussian_gelu")
    x = np.linspace(-12, 12, 4096, dtype=np.float32).reshape(-1, 4)
    exact = GELU_FORMS["none"](x.astype(np.float64))
    assert np.abs(OnnxPredictor(path, ["CPUExecutionProvider"])(x) - exact).max() < 1e-6


def test_another_standard_deviation_keeps_its_own(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(nn.Sequential(activations.create("gaussian_gelu(sigma=2.0)")), path, torch.zeros(2, 4))
    assert operators_by_site(path) == {"0": ["Div", "Gelu", "Mul"]}
