"""Calls that torch's exporter does not take, or gets wrong, are in the file what they are in PyTorch."""

import onnxscript
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.export import OnnxPredictor, export_onnx


def agrees(tmp_path, model, *calls):
    """Export with the first call, and compare with PyTorch on all."""
    path = tmp_path / "net.onnx"
    report = export_onnx(model, path, calls[0])
    for call in calls:
        torch.testing.assert_close(OnnxPredictor(path)(*call), model(*call).detach(), rtol=0, atol=1e-5)
    return report


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.query, self.options = nn.Linear(4, 4), options

    def forward(self, x, *mask):
        return F.gelu(F.scaled_dot_product_attention(self.query(x), x, x, *mask, **self.options))


@pytest.mark.parametrize("sizes", [(), (3,), (3, 2)], ids=lambda sizes: f"{len(sizes) + 3} axes")
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
def test_attention_of_any_rank_and_places_that_are_masked_all_over(tmp_path, sizes, kind):
    def call(rows):
        x, mask = torch.randn(rows, *sizes, 5, 4), torch.rand(rows, *sizes, 5, 5) > 0.4
        mask[..., 0], mask[0, ..., 1, :] = True, False  # nothing is to be seen from the second place
        masks = {"bool": (mask,), "float": (torch.zeros(mask.shape).masked_fill(~mask, -torch.inf),)}
        return x, *masks.get(kind, ())

    agrees(tmp_path, Attention(is_causal=kind == "causal"), call(2), call(3), call(1))


def test_keys_of_fewer_groups_than_queries(tmp_path):
    class Grouped(nn.Module):
        def forward(self, x, keys):
            return F.gelu(F.scaled_dot_product_attention(x, keys, keys))

    calls = [(torch.randn(rows, 3, 2, 5, 4), torch.randn(rows, 1, 2, 5, 4)) for rows in (2, 3)]
    agrees(tmp_path, Grouped(), *calls)


@pytest.mark.parametrize(
    "weight",
    [
        lambda mask: 1.0 - mask,
        lambda mask: torch.sub(1.0, mask),
        lambda mask: torch.rsub(mask, 1.5, alpha=2),
        lambda mask: 7.5 // mask,
        lambda mask: 2.0**mask,
    ],
    ids=["1.0 - mask", "sub", "rsub", "//", "**"],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_number_before_whole_numbers(tmp_path, weight, dtype):
    class Weighted(nn.Linear):
        def forward(self, x, mask):
            return F.gelu(super().forward(x)) * weight(mask)[:, None]

    calls = [(torch.randn(rows, 4), torch.randint(1, 4, (rows,), dtype=dtype)) for rows in (2, 5, 1)]
    agrees(tmp_path, Weighted(4, 4), *calls)


@pytest.mark.skipif(onnxscript.__version__.startswith("0.6."), reason="onnxscript 0.6 fails while it folds constants")
def test_the_inverse_of_a_fourier_transform(tmp_path):
    class Filtered(nn.Linear):
        def forward(self, x):
            window = torch.hann_window(16)
            spectrum = torch.stft(x, 16, window=window, return_complex=True)
            gain = F.gelu(super().forward(spectrum.abs().transpose(1, 2))).transpose(1, 2)
            return torch.istft(spectrum * gain, 16, window=window)

    agrees(tmp_path, Filtered(9, 9), (torch.randn(2, 64),), (torch.randn(3, 64),))


def test_what_is_no_tensor_is_noted(tmp_path):
    class Scaled(nn.Module):
        def forward(self, x, scale=1.0, flags=None):
            return scale * F.gelu(x) + flags["offset"]

    sample = {"x": torch.randn(2, 4), "scale": 3.0, "flags": {"offset": 2}}
    (note,) = export_onnx(Scaled(), tmp_path / "net.onnx", sample).notes
    assert "scale=3.0, flags_offset=2" in note
