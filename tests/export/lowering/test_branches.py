"""Activations within the branches of torch.cond: the file is valid, and parity knows where they are."""

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.export import OnnxPredictor, check_parity, export_onnx

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Branches(nn.Module):
    """A layer and other activations behind an activation, by the sign of the sum."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = F.silu(x)
        return torch.cond(y.sum() > 0, lambda z: F.silu(self.linear(z)) + z, lambda z: F.mish(F.silu(z)), (y,))


class ModulesInBranches(nn.Module):
    """Activation modules within both branches, one of them with a parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.gelu, self.prelu = nn.Linear(4, 4), nn.GELU(), nn.PReLU(4)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda z: self.gelu(self.linear(z)), lambda z: self.prelu(z), (x,))


@pytest.mark.parametrize("options", [{}, pytest.param({"dtype": "fp16"}, marks=pytest.mark.full)])
def test_activation_modules_within_branches(tmp_path, options):
    model, path = ModulesInBranches().eval(), tmp_path / "net.onnx"
    report = export_onnx(model, path, X, **options)
    assert {site.site: site.calls for site in report.sites} == {"gelu": 1, "prelu": 1}
    for x in (X.abs(), -X.abs()):
        with torch.no_grad():
            y = OnnxPredictor(path)(x.half() if options else x)
            torch.testing.assert_close(y.float(), model(x), rtol=3e-3 if options else 1e-5, atol=3e-3)
    assert check_parity(model, path, input_sample=X).passed


@pytest.mark.parametrize("options", [{"dtype": "fp16"}, pytest.param({"target": "ort-cpu"}, marks=pytest.mark.full)])
def test_a_file_with_branches_is_valid_and_right(tmp_path, options):
    model, path = Branches().eval(), tmp_path / "net.onnx"
    report = export_onnx(model, path, X, **options)
    assert {site.spec: site.calls for site in report.sites} == {"silu": 3, "mish": 1}
    onnx.checker.check_model(str(path), full_check=True)
    half = "dtype" in options
    for x in (X.abs(), -X.abs()):  # one for each branch
        with torch.no_grad():
            exact = Branches().double().eval()(x.half().double() if half else x.double())
        y = OnnxPredictor(path)(x.half() if half else x)
        torch.testing.assert_close(y.double(), exact, rtol=2e-3 if half else 1e-5, atol=2e-3 if half else 1e-6)
    found = check_parity(model, path, input_sample=X)
    assert not any("rewrote" in note for note in found.notes)
    alone = [note for note in found.notes if "could not be run alone: it is called within a branch" in note]
    assert [note.partition(" ")[0] for note in alone] == [site.spec for site in report.sites]
