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
    parity = check_parity(model, path, input_sample=X)
    assert not any("rewrote" in note for note in parity.notes)
    alone = [note for note in parity.notes if "was not run alone: it is in a branch" in note]
    assert [note.partition(" ")[0] for note in alone] == [site.spec for site in report.sites]
