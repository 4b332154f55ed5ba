"""A file says what is computed, and not how a model that was fused or trained to save memory computed it."""

import pytest
import torch
from compiled_activations import compiled  # noqa: F401 - a fixture
from torch import nn

from lit_gelu import activations, kernels
from lit_gelu.export import check_parity, export_onnx

SPECS = ("gelu", "gelu_tanh", "elu(alpha=0.5)", "laplace_linear", "gaussian_gelu(mu=0.1, learnable=True)")
MEMORY_SPECS = ("gelu_sigmoid", "swish(beta=1.5)", "gaussian_gelu(mu=0.5)", "cauchy_linear")
X = torch.linspace(-3, 3, 16).reshape(2, 8)


def net(specs, **options):
    torch.manual_seed(0)
    names = [activations.resolve(spec) for spec in specs]
    acts = [activations.create(name.name, **{**name.arguments, **options}) for name in names]
    return nn.Sequential(*[layer for act in acts for layer in (nn.Linear(8, 8), act)], nn.Linear(8, 3)).eval()


def test_the_file_of_a_model_that_saves_memory_is_that_of_the_plain_model(tmp_path):
    files = []
    for options in ({}, {"memory": "recompute"}):
        export_onnx(net(MEMORY_SPECS, **options), tmp_path / "net.onnx", X)
        files.append((tmp_path / "net.onnx").read_bytes())
    assert files[0] == files[1]
    assert b"memory" not in files[1]


@pytest.mark.full
@pytest.mark.usefixtures("compiled")
def test_the_file_of_a_fused_model_is_that_of_the_model_and_so_is_its_proof(tmp_path):
    plain, fused = net(SPECS), kernels.fuse(net(SPECS))
    assert sum(map(kernels.is_fused, fused.modules())) == len(SPECS)
    paths = [tmp_path / name / "net.onnx" for name in ("plain", "fused")]
    for path, model in zip(paths, (plain, fused), strict=True):
        export_onnx(model, path, X, target="ort-cuda", dtype="fp16", approximate="tanh")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert kernels.is_fused(fused[1])
    assert check_parity(fused, paths[0], X).passed
