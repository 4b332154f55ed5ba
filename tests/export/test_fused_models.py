"""Files and graphs of a fused model are those of the model."""

import pytest
import torch
from compiled_activations import compiled  # noqa: F401 - a fixture
from torch import nn

from lit_gelu import activations, kernels
from lit_gelu.export import check_parity, export_onnx

SPECS = ("gelu", "gelu_tanh", "elu(alpha=0.5)", "laplace_linear", "gaussian_gelu(mu=0.1, learnable=True)")
X = torch.linspace(-3, 3, 16).reshape(2, 8)

pytestmark = pytest.mark.usefixtures("compiled")


def net():
    torch.manual_seed(0)
    layers = [layer for spec in SPECS for layer in (nn.Linear(8, 8), activations.create(spec))]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.fixture
def pair():
    fused = kernels.fuse(net())
    assert sum(map(kernels.is_fused, fused.modules())) == len(SPECS)
    return net(), fused


def test_what_export_onnx_writes(pair, tmp_path):
    options = {"target": "ort-cuda", "dtype": "fp16", "approximate": "tanh"}
    for name, model in zip(("plain", "fused"), pair, strict=True):
        (tmp_path / name).mkdir()
        export_onnx(model, tmp_path / name / "net.onnx", X, **options)
    assert (tmp_path / "plain" / "net.onnx").read_bytes() == (tmp_path / "fused" / "net.onnx").read_bytes()
    assert kernels.is_fused(pair[1][1])


def test_the_proof_of_a_fused_model(pair, tmp_path):
    export_onnx(pair[0], tmp_path / "net.onnx", X)
    assert check_parity(pair[1], tmp_path / "net.onnx", X).passed
