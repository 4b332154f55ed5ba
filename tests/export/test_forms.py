"""Forms by name pattern: what a file records of them says again what was asked for."""

import pytest
import torch
from torch import nn

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.forms import forms_of
from lit_gelu.export.options import ExportOptions


@pytest.mark.parametrize(
    "forms",
    [
        {"head": "tanh"},
        {"body.[a, b]": "tanh", "*": "none"},
        {"a=b": "sigmoid", "layers.?, 1": "as_trained", "c": "exact"},
    ],
)
def test_patterns_with_commas_and_equals_signs_are_read_back(forms):
    recorded = ExportOptions.checked(approximate=forms).recorded["approximate"]
    assert forms_of(recorded) == {pattern: "none" if form == "exact" else form for pattern, form in forms.items()}


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleDict({"a": nn.GELU(), "b": nn.GELU()})

    def forward(self, x):
        return self.body["b"](2 * self.body["a"](x))


def test_a_file_with_such_a_pattern_is_compared(tmp_path):
    path, x = tmp_path / "net.onnx", torch.randn(2, 4)
    export_onnx(Pair(), path, x, approximate={"body.[a, x]": "tanh", "body.b": "none"})
    assert check_parity(Pair(), path, input_sample=x).passed
