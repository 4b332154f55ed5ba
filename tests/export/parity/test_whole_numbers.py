"""Outputs that are whole numbers or truth values: the share that differs is the error, whatever their size."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu.export import ParityError, check_parity, export_onnx
from lit_gelu.export.parity.differences import Differences


class Naming(nn.Module):
    """Logits, and the number that the largest one stands for."""

    def __init__(self, first):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.GELU())
        self.register_buffer("numbers", torch.arange(first, first + 3))

    def forward(self, x):
        logits = self.net(x)
        return {"logits": logits, "number": self.numbers[logits.argmax(-1)]}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("first", "dtype"), [(10_000_001, "fp32"), (30_001, "fp16"), (2**60, "fp32")])
def test_large_numbers_that_are_slightly_off_do_not_pass(first, dtype, tmp_path):
    x = torch.randn(5, 4)
    export_onnx(Naming(first + 1).eval(), tmp_path / "other.onnx", x, dtype=dtype)
    with pytest.raises(ParityError, match="number: error 1 of the entries") as raised:
        check_parity(Naming(first).eval(), tmp_path / "other.onnx", input_sample=x)
    again = pickle.loads(pickle.dumps(raised.value))  # as a process of a pool gives it back
    assert str(again) == str(raised.value)
    assert again.report.passed is False
    assert again.report.summary().endswith("largest error 1.00e+00 of the entries")
    export_onnx(Naming(first).eval(), tmp_path / "right.onnx", x, dtype=dtype)
    assert check_parity(Naming(first).eval(), tmp_path / "right.onnx", input_sample=x).passed


class Mask(nn.Module):
    """Where a net is positive, one truth value for each of many pixels; ``flipped`` has one of them wrong."""

    def __init__(self, pixels):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, pixels), nn.GELU())
        self.register_buffer("flipped", torch.zeros(pixels, dtype=torch.bool))

    def forward(self, x):
        return ((self.net(x) > 0) ^ self.flipped).unflatten(1, (-1, 8))


@pytest.mark.parametrize(("pixels", "dtype"), [(4096, "fp16"), pytest.param(160_000, "fp32", marks=pytest.mark.full)])
def test_one_pixel_of_a_large_mask_that_is_wrong_in_every_row_does_not_pass(pixels, dtype, tmp_path):
    x, net = torch.randn(5, 4), Mask(pixels).eval()
    export_onnx(net, tmp_path / "right.onnx", x, dtype=dtype)
    assert check_parity(net, tmp_path / "right.onnx", input_sample=x).passed
    net.flipped[11] = True
    export_onnx(net, tmp_path / "other.onnx", x, dtype=dtype)
    net.flipped[11] = False
    report = check_parity(net, tmp_path / "other.onnx", input_sample=x, strict=False)
    assert not report.passed
    assert any("[:, 1, 3] differs in 32 of 32 rows" in str(row) for row in report.failures)


def test_the_share_that_differs_in_the_worst_batch():
    found = Differences()
    found.add(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4]))
    assert found.relative(4.0, 0.0) == 0
    found.add(np.array([1, 2, 3, 9]), np.array([1, 2, 3, 4]))
    found.add(np.array([True, False]), np.array([True, False]))
    assert found.relative(4.0, 0.0) == 0.25
    found.add(None, np.array([1]))
    assert found.relative(4.0, 0.0) == float("inf")
