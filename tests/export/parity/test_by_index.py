"""Errors by index: what one scale for a whole output hides, and what must be no false alarm."""

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.parity.by_index import ByIndex

FLOOR, IGNORED = 1e-5, 1e-12
HOW = (torch.float32, FLOOR, IGNORED)


def by_index(reference, output=None, own=None):
    found = ByIndex()
    found.add(np.asarray(reference), None if output is None else np.asarray(output), None if own is None else own)
    return found


def test_the_index_farthest_from_its_own_size_is_found_in_every_dimension_but_the_first():
    exact = np.ones((4, 3, 5, 7)) * np.array([1e4, 1.0, 1e-2]).reshape(3, 1, 1)
    wrong = exact.copy()
    wrong[1, 2, 0, 0] += 1e-3
    worst = by_index(exact, wrong).worst(by_index(exact), *HOW)
    assert worst.index == "[:, 2]"
    assert worst.index_error == pytest.approx(1e-3)
    assert worst.index_scale == 1e-2
    assert worst.index_limit == pytest.approx(FLOOR * 1e-2)
    last = exact.transpose(0, 2, 3, 1)
    worst = by_index(last, wrong.transpose(0, 2, 3, 1)).worst(by_index(last), *HOW)
    assert worst.index == "[:, :, :, 2]"


def test_pytorchs_own_error_at_an_index_allows_twice_its_largest_or_sixteen_root_mean_squares():
    generator = np.random.default_rng(0)
    exact = generator.normal(size=(1000, 2))
    noise = generator.normal(size=exact.shape) * [0, 1e-3]
    worst = by_index(exact, exact + np.array([0, 1e-2])).worst(by_index(exact, own=exact + noise), *HOW)
    by_hand = 2 * max(np.abs(noise[:, 1]).max(), 8 * np.sqrt(np.square(noise[:, 1]).mean()))
    assert (worst.index, worst.index_limit) == ("[:, 1]", pytest.approx(by_hand))
    half = by_index(exact, exact + np.array([0, 1e-2])).worst(
        by_index(exact, own=exact + noise), torch.float16, FLOOR, IGNORED
    )
    assert half.index_limit == pytest.approx(by_hand / 2)
    one = by_index([[1.0]], own=np.array([[1.001]]))  # of a single number the largest and the root mean square agree
    assert by_index([[1.0]], [[1.0]]).worst(one, *HOW).index_limit == pytest.approx(16e-3)


def test_figures_of_families_are_pooled_and_lengths_may_differ():
    usual = by_index(np.full((2, 3), 2.0), own=np.full((2, 3), 2.5))
    usual.pool(by_index(np.full((2, 5), 4.0)))
    worst = by_index(np.full((1, 5), 4.0), np.array([[4.0, 4.0, 4.0, 4.0, 5.0]])).worst(usual, *HOW)
    assert (worst.index, worst.index_scale, worst.index_limit) == ("[:, 4]", 4.0, pytest.approx(4e-5))
    worst = by_index(np.full((1, 2), 4.0), np.array([[4.0, 5.0]])).worst(usual, *HOW)
    assert (worst.index, worst.index_limit) == ("[:, 1]", pytest.approx(2 * 8 * 0.5))


def test_an_index_that_is_zero_may_be_off_by_the_ignored_error_alone():
    usual = by_index(np.zeros((2, 2)))
    assert by_index(np.zeros((2, 2)), np.full((2, 2), 1e-12)).worst(usual, *HOW).index_error == IGNORED
    worst = by_index(np.zeros((2, 2)), np.full((2, 2), 3e-12)).worst(usual, *HOW)
    assert worst.index_error / worst.index_limit == pytest.approx(3)


def test_vectors_and_numbers_have_no_index():
    assert by_index(np.ones(3), np.zeros(3)).worst(by_index(np.ones(3)), *HOW) is None
    assert by_index(np.ones(()), np.zeros(())).worst(by_index(np.ones(())), *HOW) is None


class Unlike(nn.Module):
    """Outputs of three sizes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Sequential(nn.Linear(6, 16), nn.GELU()), nn.Linear(16, 3)
        self.register_buffer("sizes", torch.tensor([1e4, 1.0, 1e-2]))

    def forward(self, x):
        return self.head(self.body(x)) * self.sizes


def test_a_small_column_that_is_wrong_fails_and_is_named(tmp_path):
    net, path = Unlike(), tmp_path / "net.onnx"
    export_onnx(net, path, torch.zeros(2, 6))
    assert check_parity(net, path).passed
    with torch.no_grad():
        net.head.weight[2] = 0
    report = check_parity(net, path, strict=False)
    assert not report.passed
    rows = [row for row in report.failures if row.inputs == "gaussian, batch 32"]
    assert [row.index for row in rows] == ["[:, 2]"]
    assert rows[0].error < rows[0].limit  # the whole output's scale hides it
    assert report.culprit is not None
    assert report.culprit.kind == "file"
    for text in (str(rows[0]), str(report), report.to_markdown(), report.to_html()):
        assert "[:, 2] is off by" in text


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


@pytest.mark.one_in(6)
@pytest.mark.parametrize("fill", [None, torch.finfo(torch.float32).min, -torch.inf, -1e9, -1e4], ids=str)
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


@pytest.mark.one_in(3)
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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_head_whose_columns_cancel_or_vanish_is_no_false_alarm(tmp_path, seed, dtype):
    net, path = Head(seed), tmp_path / "net.onnx"
    export_onnx(net, path, torch.ones(2, 16), dtype=dtype)
    assert check_parity(net, path, input_sample=torch.ones(2, 16), seed=seed).passed


def test_a_vocabulary_of_50_000_is_no_false_alarm(tmp_path):
    torch.manual_seed(0)
    net, path = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 50_000)), tmp_path / "net.onnx"
    export_onnx(net, path, torch.zeros(2, 16))
    assert check_parity(net, path).passed


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
