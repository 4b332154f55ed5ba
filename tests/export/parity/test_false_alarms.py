"""Outputs that are hard to judge: right files pass, and what is wrong in them is still found."""

import pytest
import torch
from torch import nn

from lit_gelu.export import check_parity, export_onnx


class Masked(nn.Module):
    """Logits, some of which are filled: always the same ones, and those that a mask does not allow."""

    def __init__(self, fill):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fill = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 6)), fill
        self.register_buffer("never", torch.tensor([False, False, True, False, False, False]))

    def forward(self, x, allowed):
        y = self.body(x)
        fill = torch.finfo(y.dtype).min if self.fill is None else self.fill
        return y.masked_fill(~allowed | self.never, fill)


@pytest.mark.parametrize("fill", [None, pytest.param(-torch.inf, marks=pytest.mark.full), -1e9], ids=str)
def test_filled_logits_are_no_fault_and_hide_none(tmp_path, fill):
    net, path = Masked(fill), tmp_path / "net.onnx"
    sample = (torch.randn(8, 4), torch.arange(48).reshape(8, 6) % 5 > 0)
    export_onnx(net, path, sample)
    assert check_parity(net, path, input_sample=sample).passed
    with torch.no_grad():
        net.body[2].weight[1] *= 1.02
    report = check_parity(net, path, input_sample=sample, strict=False)
    assert not report.passed
    assert "[:, 1]" in {row.index for row in report.failures}


@pytest.mark.full
@pytest.mark.parametrize("wrong", [-torch.inf, torch.nan, -2e9], ids=str)
def test_a_file_with_another_fill_fails(tmp_path, wrong):
    net, path = Masked(wrong), tmp_path / "net.onnx"
    sample = (torch.randn(8, 4), torch.arange(48).reshape(8, 6) % 5 > 0)
    export_onnx(net, path, sample)
    net.fill = -1e9
    assert not check_parity(net, path, input_sample=sample, strict=False).passed


class Head(nn.Module):
    """A classifier of 1,000 classes: some logits nearly cancel, others are nearly zero because their weights are."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.head = nn.Sequential(nn.Linear(16, 512), nn.GELU()), nn.Linear(512, 1000)
        with torch.no_grad():
            self.head.weight[:100] *= 1e-7
            self.head.bias[:200] = 0
            # Columns 100 to 199 are differences of sums that agree to the last digits but five.
            self.head.weight[100:200] = 1.0 + 1e-5 * torch.randn(100, 512)
            self.head.weight[100:200, 256:] *= -1
            self.body[0].weight[256:] = self.body[0].weight[:256]
            self.body[0].bias[256:] = self.body[0].bias[:256]

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize(("dtype", "seed"), [("fp32", 0), pytest.param("fp16", 1, marks=pytest.mark.full)])
def test_a_head_whose_columns_cancel_or_vanish_is_no_false_alarm(tmp_path, seed, dtype):
    net, path = Head(seed), tmp_path / "net.onnx"
    export_onnx(net, path, torch.ones(2, 16), dtype=dtype)
    assert check_parity(net, path, input_sample=torch.ones(2, 16), seed=seed).passed


def test_probabilities_of_sure_logits_are_no_false_alarm(tmp_path):
    """Tails of softmax and sigmoid: 1e-20 and less beside 1."""
    torch.manual_seed(0)
    net, path = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 20)), tmp_path / "net.onnx"
    with torch.no_grad():
        net[2].bias.copy_(torch.linspace(-60, 5, 20))
    for end in (nn.Softmax(-1), nn.Sigmoid()):
        model = nn.Sequential(*net, end)
        export_onnx(model, path, torch.zeros(2, 16))
        assert check_parity(model, path).passed


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


@pytest.mark.parametrize(("power", "passed"), [(lambda p: p**0.25, False), (lambda p: p, True)])
def test_a_power_of_sigmoid_is_told_from_a_wrong_file(tmp_path, power, passed):
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.centre = nn.Linear(4, 3), nn.Linear(4, 1)

        def forward(self, x):
            return power(self.score(x).sigmoid() * self.centre(x).sigmoid())

    torch.manual_seed(0)
    head = Head().eval()
    export_onnx(head, tmp_path / "net.onnx", torch.zeros(2, 4))
    report = check_parity(head, tmp_path / "net.onnx", strict=False)
    assert (report.passed, any("logsigmoid" in note for note in report.notes)) == (passed, not passed)


class Choice(Masked):
    """The index of the largest of the filled logits."""

    def forward(self, x, allowed):
        return super().forward(x, allowed).argmax(-1)


@pytest.mark.parametrize("fill", [-torch.inf, -1e9, 0.0], ids=str)
def test_a_choice_among_filled_logits_is_no_tie_because_of_the_fill(tmp_path, fill):
    net, path = Choice(fill), tmp_path / "net.onnx"
    sample = (torch.randn(32, 4), torch.arange(192).reshape(32, 6) % 5 > 0)
    export_onnx(net, path, sample)
    assert check_parity(net, path, input_sample=sample).passed
    with torch.no_grad():
        net.body[2].weight.mul_(-1)
    assert not check_parity(net, path, input_sample=sample, strict=False).passed


class UnderMask(nn.Module):
    """Logits with a float mask that is multiplied by a constant and added, or compared with 1."""

    def __init__(self, constant):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.constant = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 6)), constant

    def forward(self, x, mask):
        y = self.body(x)
        return y * (mask == 1) if self.constant is None else y + (1 - mask) * self.constant


@pytest.mark.parametrize("constant", [None, -1e4, -1e6, -1e9], ids=str)
def test_a_mask_in_float_hides_nothing(tmp_path, constant):
    """A mask's 1 is exact, and what is added under it says nothing of what the rest may be off by."""
    net, path = UnderMask(constant), tmp_path / "net.onnx"
    mask = torch.tensor([[1.0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]]).repeat(8, 1)
    sample = (torch.randn(16, 4), mask)
    export_onnx(net, path, sample)
    assert check_parity(net, path, input_sample=sample).passed
    with torch.no_grad():
        net.body[2].bias.add_(0.03)
    assert not check_parity(net, path, input_sample=sample, strict=False).passed


def test_whole_numbers_that_float16_does_not_hold_are_right(tmp_path):
    class Numbered(nn.Module):
        def forward(self, x):
            return {"y": nn.functional.gelu(x), "number": (x[:, 0] * 0).long() + 100_000}

    export_onnx(Numbered(), tmp_path / "net.onnx", torch.randn(2, 4), dtype="fp16")
    assert check_parity(Numbered(), tmp_path / "net.onnx", input_sample=torch.randn(2, 4)).passed


def test_a_missing_value_of_the_data_is_one_in_the_file_too(tmp_path):
    net, path = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)), tmp_path / "net.onnx"
    export_onnx(net, path, torch.randn(2, 4))
    data = torch.randn(16, 4)
    data[3, 1] = torch.nan
    assert check_parity(net, path, data, torch.randn(2, 4)).passed
