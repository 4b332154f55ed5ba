"""Optimizers and schedules against their formulas, and torch's where they are equal."""

import pytest
import torch
from data_checkpoints import OneNumber
from small_task import quiet_trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lit_gelu.errors import ArgumentError
from lit_gelu.tasks import AdamEpsilonInsideRoot
from lit_gelu.tasks.optimizers import HalvesSchedule, steps_per_epoch


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


class Asking(OneNumber):
    """Asks for its steps an epoch when its optimizer is made."""

    validation_step = None  # nothing is validated

    def configure_optimizers(self):
        self.steps = steps_per_epoch(self.trainer)
        return super().configure_optimizers()


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


def test_a_longer_run_goes_on_by_its_own_length():
    """The shorter run's own last rate is 0: a schedule that kept its length would train no more."""
    before = 4
    optimizer, schedule = optimizer_and_schedule(before)
    for _ in range(before):
        optimizer.step()
        schedule.step()
    longer, other = optimizer_and_schedule(2 * before)
    longer.load_state_dict(optimizer.state_dict())
    other.load_state_dict(schedule.state_dict())
    rates = []
    for _ in range(before):
        assert longer.param_groups[0]["betas"][0] == 0.5
        rates.append([group["lr"] for group in longer.param_groups])
        longer.step()
        other.step()
    assert rates == [pytest.approx([1e-3 * factor, 1e-4 * factor]) for factor in (1, 0.75, 0.5, 0.25)]
    assert other.get_last_lr() == [0, 0]


def problem(dtype=torch.float64):
    """Parameters of several shapes and layouts, and a function of their gradients, some of them below 1e-4."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(7,), (3, 4), (5, 2, 3, 3), ()]
    params = [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]
    params[2].data = params[2].data.to(memory_format=torch.channels_last)
    sizes = [torch.logspace(-7, 0, param.numel(), dtype=dtype).reshape(param.shape) for param in params]

    def gradients():
        return [
            torch.randn(param.shape, generator=generator, dtype=dtype) * size
            for param, size in zip(params, sizes, strict=True)
        ]

    return params, gradients


def test_steps_against_the_formula_while_learning_rate_and_beta1_change():
    params, gradients = problem()
    reference = [param.detach().clone() for param in params]
    first, second = ([torch.zeros_like(param) for param in params] for _ in range(2))
    optimizer = AdamEpsilonInsideRoot(params, lr=1e-2)
    for step, (lr, beta1) in enumerate([(1e-2, 0.9), (1e-2, 0.9), (5e-3, 0.5), (1e-3, 0.5)], start=1):
        optimizer.param_groups[0].update(lr=lr, betas=(beta1, 0.999))
        for param, gradient, p, m, v in zip(params, gradients(), reference, first, second, strict=True):
            param.grad = gradient
            m.copy_(beta1 * m + (1 - beta1) * gradient)
            v.copy_(0.999 * v + 0.001 * gradient**2)
            p -= lr * (m / (1 - beta1**step)) / (v / (1 - 0.999**step) + 1e-8).sqrt()
        optimizer.step()
        for param, p in zip(params, reference, strict=True):
            torch.testing.assert_close(param.detach(), p, rtol=0, atol=1e-15)
