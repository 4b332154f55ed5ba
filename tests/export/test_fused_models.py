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


@pytest.mark.full
def test_the_file_of_a_fused_model_is_that_of_the_model_and_so_is_its_proof(tmp_path):
    plain, fused = net(), kernels.fuse(net())
    assert sum(map(kernels.is_fused, fused.modules())) == len(SPECS)
    paths = [tmp_path / name / "net.onnx" for name in ("plain", "fused")]
    for path, model in zip(paths, (plain, fused), strict=True):
        export_onnx(model, path, X, target="ort-cuda", dtype="fp16", approximate="tanh")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert kernels.is_fused(fused[1])
    assert check_parity(fused, paths[0], X).passed
