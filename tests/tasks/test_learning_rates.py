"""The CIFAR-10 net's schedule at the epochs that the paper's code names, and as a scheduler of torch."""

import pytest
import torch
from lightning.pytorch import LightningModule
from mpmath import mp
from small_task import quiet_trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lit_gelu.errors import ArgumentError
from lit_gelu.tasks.optimizers import (
    HalvesSchedule,
    beta1_of_halves,
    constant_then_linear,
    cosine_factor,
    steps_per_epoch,
)

NAMED_EPOCHS = {0: 1, 1: 1, 99: 1, 100: 1, 101: 0.99, 150: 0.5, 198: 0.02, 199: 0.01, 200: 0, 250: 0}


@pytest.mark.parametrize(("epoch", "factor"), NAMED_EPOCHS.items())
def test_the_factor_at_named_epochs(epoch, factor):
    assert constant_then_linear(epoch, 200) == pytest.approx(factor, abs=1e-12)


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


# The cosine of every step: values at named steps, and the steps that a Trainer makes.


@pytest.mark.parametrize("step", [0, 1, 781, 19_531, 39_049])
def test_the_papers_learning_rates_against_mpmath(step):
    with mp.workdps(30):
        expected = float(mp.mpf("0.05") * (1 + mp.cos(mp.pi * step / mp.mpf("39062.5"))))
    assert 0.1 * cosine_factor(step, 39_062.5) == pytest.approx(expected, rel=1e-7, abs=0)


class Asking(LightningModule):
    """Asks for its steps an epoch when its optimizer is made."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.steps = None

    def training_step(self, batch, batch_index):
        return (batch[0] * self.weight).sum()

    def configure_optimizers(self):
        self.steps = steps_per_epoch(self.trainer)
        return torch.optim.SGD(self.parameters(), lr=0.0)


def samples(count):
    return TensorDataset(torch.zeros(count))


@pytest.mark.parametrize(
    ("loader", "options", "expected"),
    [
        ({"batch_size": 4, "drop_last": True}, {}, 4.75),
        ({"batch_size": 4}, {}, 5),
        ({"batch_size": 4, "drop_last": True}, {"limit_train_batches": 3}, 3),
        ({"batch_size": 4, "drop_last": True}, {"accumulate_grad_batches": 2}, 2),
        ({"batch_size": 4, "drop_last": True}, {"accumulate_grad_batches": 3}, 2),  # Lightning steps at an epoch's end
        ({"batch_size": None}, {}, 19),
    ],
)
def test_steps_of_a_trainers_epoch(loader, options, expected):
    model = Asking()
    quiet_trainer(max_epochs=1, **options).fit(model, DataLoader(samples(19), **loader))
    assert model.steps == expected


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(1)


def test_a_loader_without_length():
    loader = DataLoader(Endless(), batch_size=2)
    with pytest.raises(ArgumentError):
        quiet_trainer(max_epochs=1).fit(Asking(), loader)
    model = Asking()
    quiet_trainer(max_epochs=1, limit_train_batches=3).fit(model, loader)
    assert model.steps == 3


@pytest.mark.parametrize("before", [4, 3, 8])
def test_a_longer_run_goes_on_by_its_own_length(before):
    """The shorter run's own last rate is 0: a schedule that kept its length would train no more."""
    optimizer, schedule = optimizer_and_schedule(before)
    for _ in range(before):
        optimizer.step()
        schedule.step()
    longer, other = optimizer_and_schedule(2 * before)
    longer.load_state_dict(optimizer.state_dict())
    other.load_state_dict(schedule.state_dict())
    rates = []
    for period in range(before, 2 * before):
        assert longer.param_groups[0]["betas"][0] == beta1_of_halves(period, 2 * before)
        rates.append([group["lr"] for group in longer.param_groups])
        longer.step()
        other.step()
    expected = [constant_then_linear(period, 2 * before) for period in range(before, 2 * before)]
    assert rates == [pytest.approx([1e-3 * factor, 1e-4 * factor]) for factor in expected]
    assert other.get_last_lr() == [0, 0]
