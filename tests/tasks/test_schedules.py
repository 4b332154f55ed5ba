"""The CIFAR-10 net's schedule at the epochs that the paper's code names, and as a scheduler of torch."""

import pytest
import torch
from torch import nn

from lit_gelu.tasks.schedules import HalvesSchedule, beta1_of_halves, constant_then_linear

NAMED_EPOCHS = {0: 1, 1: 1, 99: 1, 100: 1, 101: 0.99, 150: 0.5, 198: 0.02, 199: 0.01, 200: 0, 250: 0}


@pytest.mark.parametrize(("epoch", "factor"), NAMED_EPOCHS.items())
def test_the_factor_at_named_epochs(epoch, factor):
    assert constant_then_linear(epoch, 200) == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize(("epoch", "beta1"), [(0, 0.9), (99, 0.9), (100, 0.5), (199, 0.5)])
def test_beta1_at_named_epochs(epoch, beta1):
    assert beta1_of_halves(epoch, 200) == beta1


def test_other_lengths_turn_at_their_half():
    assert [constant_then_linear(epoch, 4) for epoch in range(4)] == [1, 1, 1, 0.5]
    assert [beta1_of_halves(epoch, 4) for epoch in range(4)] == [0.9, 0.9, 0.5, 0.5]
    assert [constant_then_linear(epoch, 5) for epoch in range(5)] == pytest.approx([1, 1, 1, 0.8, 0.4])
    assert [beta1_of_halves(epoch, 5) for epoch in range(5)] == [0.9, 0.9, 0.9, 0.5, 0.5]
    assert constant_then_linear(0, 1) == 1
    # Step by step the last factor is nearer to 0 than any named epoch's.
    assert constant_then_linear(99_999, 100_000) == pytest.approx(2e-5)


def optimizer_and_schedule(periods):
    groups = [{"params": [nn.Parameter(torch.zeros(1))]}, {"params": [nn.Parameter(torch.zeros(1))], "lr": 1e-4}]
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    return optimizer, HalvesSchedule(optimizer, periods)


def values(optimizer):
    return [(group["lr"], *group["betas"]) for group in optimizer.param_groups]


def test_the_scheduler_sets_every_group():
    optimizer, schedule = optimizer_and_schedule(200)
    for epoch in range(200):
        expected = min(2 - epoch / 100, 1), 0.9 if epoch < 100 else 0.5
        for (lr, beta1, beta2), base in zip(values(optimizer), (1e-3, 1e-4), strict=True):
            assert (lr, beta1, beta2) == (pytest.approx(base * expected[0]), expected[1], 0.999)
        optimizer.step()
        schedule.step()


def test_a_saved_schedule_goes_on(tmp_path):
    optimizer, schedule = optimizer_and_schedule(6)
    for _ in range(4):
        optimizer.step()
        schedule.step()
    torch.save((optimizer.state_dict(), schedule.state_dict()), tmp_path / "state.pt")
    again, resumed = optimizer_and_schedule(6)
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert values(again) == values(optimizer)
    assert values(again)[0][1] == 0.5
    for both in ((optimizer, schedule), (again, resumed)):
        both[0].step()
        both[1].step()
    assert values(again) == values(optimizer)
    assert values(again)[0][0] == pytest.approx(1e-3 * (2 - 2 * 5 / 6))
