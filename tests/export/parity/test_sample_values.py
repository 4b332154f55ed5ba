"""Modules that gaussian values do not fit are compared on values of their own."""

import pytest
import torch
from torch import nn

from lit_gelu.export import ParityError, check_parity, export_onnx


class OfSpectrum(nn.Module):
    """Takes a function of its input that is not defined everywhere, as front ends for speech do."""

    def __init__(self, function=torch.log):
        super().__init__()
        self.net, self.function = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), function

    def forward(self, x):
        return self.net(self.function(x))


@pytest.mark.parametrize(
    ("function", "sample", "family", "note"),
    [
        (torch.log, torch.rand(64, 16) + 0.1, "sample's values", "the sample's own"),
        (torch.logit, torch.rand(8, 16) * 0.98 + 0.01, "sample's values", "the sample's own"),
        (torch.sqrt, torch.ones(2, 16), "|gaussian|", "their magnitudes"),
    ],
)
def test_values_that_the_module_takes_are_drawn(tmp_path, function, sample, family, note):
    model, path = OfSpectrum(function), tmp_path / "net.onnx"
    export_onnx(model, path, sample)
    report = check_parity(model, path, input_sample=sample)
    row = report.row(f"{family}, batch 32")
    assert (row.count, row.nonfinite) == (32, 0)
    assert row.scale > 0.1
    assert f"with gaussian values outputs are not finite; {note} were drawn instead." in report.notes
    with torch.no_grad():
        model.net[2].weight[1] += 0.01
    found = check_parity(model, path, input_sample=sample, strict=False)
    assert not found.row(f"{family}, batch 32").passed


def test_others_are_compared_on_gaussian_values(tmp_path):
    model, path = OfSpectrum(torch.sin), tmp_path / "net.onnx"
    export_onnx(model, path, torch.rand(2, 16))
    report = check_parity(model, path, input_sample=torch.rand(2, 16))
    assert report.row("gaussian, batch 32").count == 32
    assert not report.notes


def test_a_module_that_gives_nan_on_its_sample_fails(tmp_path):
    model, path = OfSpectrum(torch.sin), tmp_path / "net.onnx"
    with torch.no_grad():
        model.net[2].bias[0] = float("nan")
    export_onnx(model, path, torch.rand(2, 16))
    with pytest.raises(ParityError, match="NaN"):
        check_parity(model, path, input_sample=torch.rand(2, 16))
