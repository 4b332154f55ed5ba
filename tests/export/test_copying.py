"""The copy that is exported: what it is converted to, and what cannot be copied."""

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu.export import ExportError, OnnxPredictor, check_parity, export_onnx
from lit_gelu.export.copying import relative_difference

X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))


class Rotary(nn.Module):
    """Rotations of pairs by angles that are a complex buffer, as Llama's ``freqs_cis``."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        angles = torch.outer(torch.arange(5.0), 0.5 ** torch.arange(4.0))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))
        self.head = nn.Sequential(nn.Linear(8, 8), nn.GELU())

    def forward(self, x):
        pairs = torch.view_as_complex(self.head(x).unflatten(-1, (4, 2)))
        return torch.view_as_real(pairs * self.freqs_cis).flatten(-2)


def rotated(x):
    """The same in real numbers, in float64."""
    model = Rotary().double()
    y = model.head(x.double()).unflatten(-1, (4, 2))
    angles = torch.outer(torch.arange(5.0), 0.5 ** torch.arange(4.0)).double()
    cos, sin = angles.cos(), angles.sin()
    a, b = y[..., 0], y[..., 1]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).detach()


def test_complex_buffers_are_a_part_of_the_file(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(Rotary(), path, X)
    torch.testing.assert_close(OnnxPredictor(path)(X).double(), rotated(X), rtol=0, atol=1e-5)
    report = check_parity(Rotary(), path, input_sample=X)
    assert report.passed
    assert not any("reference" in note for note in report.notes)


def traced(net):
    return torch.jit.trace(net.eval(), X)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        traced,
        lambda net: nn.Sequential(nn.GELU(), traced(net)),
        lambda net: net.to("meta"),
        lambda net: nn.Sequential(net, nn.LazyLinear(3)),
        lambda net: net.state_dict(),
    ],
)
def test_what_cannot_be_copied_is_refused(tmp_path, make):
    net, path = nn.Sequential(nn.Linear(8, 8), nn.GELU()), tmp_path / "net.onnx"
    export_onnx(net, path, X)
    model = make(net)
    for call in (lambda: export_onnx(model, tmp_path / "other.onnx", X), lambda: check_parity(model, path, None, X)):
        with pytest.raises(ExportError):
            call()
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


class Spectrum(nn.Module):
    """Has a complex output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.view_as_complex(self.linear(x).unflatten(-1, (4, 2)))


def test_complex_outputs_of_a_module_in_float64_are_those_of_its_copy(tmp_path):
    export_onnx(Spectrum().double(), tmp_path / "net.onnx", X)
    y = torch.view_as_real(Spectrum().double()(X.double()))
    torch.testing.assert_close(OnnxPredictor(tmp_path / "net.onnx")(X).double(), y, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("y", "of", "expected"),
    [([1.0, 3.0], [2.0, -4.0], 7 / 4), ([np.nan], [np.nan], 0), ([np.inf], [np.inf], 0), ([np.nan], [2.0], np.inf)],
)
def test_a_lost_value_is_no_small_difference(y, of, expected):
    assert relative_difference(np.array(y), np.array(of)) == expected
