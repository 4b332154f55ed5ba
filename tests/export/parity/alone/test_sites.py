"""Which activations of a file can be run alone, and what is said of the others."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.export import check_parity, export_onnx

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Called(nn.Module):
    def forward(self, x):
        return F.softplus(x, -2.0)


@pytest.mark.parametrize(
    ("model", "spec", "argument"),
    [
        (nn.CELU(-0.5), "celu(alpha=-0.5)", "alpha=-0.5"),
        (nn.Softplus(-2.0), "softplus(beta=-2.0)", "beta=-2.0"),
        (Called(), "softplus(beta=-2.0)", "beta=-2.0"),
    ],
)
def test_arguments_that_only_torch_takes_are_a_note(tmp_path, model, spec, argument):
    path = tmp_path / "net.onnx"
    export_onnx(model, path, X)
    report = check_parity(model, path, input_sample=X)
    assert report.passed
    (note,) = [note for note in report.notes if "run alone" in note]
    assert note.startswith(f"{spec} could not be run alone")
    assert f"{argument} is not accepted" in note
    assert report.elementwise == ()
