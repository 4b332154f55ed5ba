"""What forward computes in float64: the report says where onnxruntime's CPU has no kernels, which loading shows."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.export import ModelFileError, OnnxPredictor, export_onnx
from lit_gelu.export.runtime import CPU

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class InFloat64(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x.double()).float()


@pytest.mark.parametrize("target", ["portable", "ort-cpu"])
@pytest.mark.parametrize(
    "function",
    [
        F.gelu, F.elu, F.softplus, F.mish, F.leaky_relu, F.selu, F.hardswish, F.silu, F.relu, torch.erf, torch.exp,
        lambda x: F.gelu(x, approximate="tanh"),
    ],
)  # fmt: skip
@pytest.mark.one_in(6)
def test_the_note_is_there_exactly_where_the_file_does_not_load(tmp_path, function, target):
    path = tmp_path / "net.onnx"
    report = export_onnx(InFloat64(function), path, X, target=target)
    notes = [note for note in report.notes if "has no float64 kernels of" in note]
    assert len(notes) <= 1
    if notes:
        assert "let forward compute them in float32" in notes[0]
        with pytest.raises(ModelFileError, match="NOT_IMPLEMENTED"):
            OnnxPredictor(path, [CPU])
    else:
        exact = function(X.double()).float()
        torch.testing.assert_close(OnnxPredictor(path, [CPU])(X), exact, rtol=1e-6, atol=1e-6)


def test_float32_has_no_such_note(tmp_path):
    assert export_onnx(nn.GELU(), tmp_path / "net.onnx", X).notes == ()
