"""Products of two batches at once against those of each alone."""

import pytest
import torch

from lit_gelu.replicas.written import layers as written_layers
from lit_gelu.replicas.written.joint_products import lying_behind, rows_are_those_alone
from lit_gelu.replicas.written.layers import LinearPart

BATCH, FED, WIDTH = 16, 24, 25


def test_batches_that_lie_behind_each_other():
    whole = torch.arange(24.0).view(2, 4, 3)
    first, second = whole.unbind()
    assert torch.equal(lying_behind(first, second), whole.view(8, 3))
    assert lying_behind(second, first) is None
    assert lying_behind(first, second.clone()) is None
    assert lying_behind(first[:2], second[:2]) is None
    assert lying_behind(first[:, :2], second[:, :2]) is None
    assert lying_behind(first, first) is None


@pytest.mark.parametrize("is_alike", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_both(monkeypatch, has_bias, is_alike):
    monkeypatch.setattr(written_layers, "rows_are_those_alone", lambda *_: is_alike)
    layer = torch.nn.Linear(FED, WIDTH, bias=has_bias)
    values = {f"at.{name}": value.detach() for name, value in layer.named_parameters()}
    gradients = {name: torch.empty_like(value) for name, value in values.items()}
    part = LinearPart("at", values, gradients, lambda _, width: torch.empty(BATCH, width), outputs(), is_first=True)
    with torch.no_grad():
        noisy, noise_free = (torch.randn(2, BATCH, FED)).unbind()
        for given in [(noisy, noise_free), (noisy.clone(), noise_free), (noisy, noise_free)]:
            found = part.both(*given)
            assert (part.joint is not None) == (is_alike and given[0] is noisy)
            for ours, inputs in zip(found, given, strict=True):
                torch.testing.assert_close(ours, layer(inputs))
        gradient = torch.randn(BATCH, WIDTH)
        part.backward(gradient)
        torch.testing.assert_close(gradients["at.weight"], gradient.t() @ noisy)


def outputs():
    return torch.empty(2, BATCH, WIDTH).unbind()


@pytest.mark.parametrize("has_bias", [True, False])
def test_rows_are_compared(monkeypatch, has_bias):
    sizes = BATCH, FED, WIDTH, torch.float32, has_bias, 1
    real_mm, real_addmm = torch.mm, torch.addmm

    def shifted(*given, out=None):
        return real_addmm(*given) if out is None else real_addmm(*given, out=out).mul_(1 + 1e-6)

    assert rows_are_those_alone.__wrapped__(*sizes) in {True, False}  # as the library has it
    monkeypatch.setattr(torch, "mm", lambda *given, out: real_mm(*given, out=out).mul_(1 + 1e-6))
    monkeypatch.setattr(torch, "addmm", shifted)
    assert not rows_are_those_alone.__wrapped__(*sizes)
