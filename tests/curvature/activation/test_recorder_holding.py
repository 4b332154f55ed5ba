"""Inputs that are held until the forward pass is over: the same rows, no operation before, nothing wrong after."""

import pytest
import torch
from dispatched import Operations
from torch import nn

from lit_gelu.curvature import ActivationRecorder


class Overwriting(nn.Module):
    """Adds 100 to the activation's input once it was used."""

    def __init__(self):
        super().__init__()
        self.act = nn.GELU()
        self.overwrites = True

    def forward(self, x):
        y = self.act(x)
        if self.overwrites:
            x.detach().add_(100)
        return y


def pre_activation(seed=0):
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(seed))
    return x, x.clone().requires_grad_()


def test_the_forward_pass_has_no_operation_more():
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.SiLU())
    x, _ = pre_activation()
    with Operations() as without:
        net(x)
    with ActivationRecorder({"1": net[1], "3": net[3]}, sample_rows=5) as recorder:
        recorder.start()
        with Operations() as recorded:
            net(x)
        recorder.pause()
        assert recorder.sums()[:, 0].tolist() == [40, 40]
    assert recorded.names == without.names


def test_rows_are_those_that_a_copy_at_once_has():
    net = nn.GELU()
    x, held = pre_activation()
    sums = []
    for given in (x, held):  # the first one requires no gradient, so it is copied
        with ActivationRecorder({"": net}, sample_rows=9) as recorder:
            recorder.start(seed=4)
            net(given)
            recorder.stop()
            sums.append(recorder.sums())
    assert torch.equal(*sums)


def test_an_overwritten_input_is_left_out_and_copied_at_once_from_then_on():
    net = Overwriting()
    with ActivationRecorder({"act": net.act}, sample_rows=1000) as recorder:
        counts, means = [], []
        for seed in range(3):
            x, held = pre_activation(seed)
            recorder.start()
            net(held)
            recorder.stop()
            counts.append(recorder.sums()[0, 0].item())
            means.append((recorder.statistics()["act"]["mean"], x.double().mean().item()))
    assert counts == [0, 400, 400]
    assert [found for found, _ in means[1:]] == pytest.approx([expected for _, expected in means[1:]], rel=1e-6)
