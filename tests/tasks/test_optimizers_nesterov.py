"""LasagneNesterovSGD against its formula in float64, and against torch's where the two are equal."""

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu.tasks.optimizers import LasagneNesterovSGD

RATES = [0.1, 0.1, 0.07, 0.02, 0.3]


def quadratic(weight):
    """A loss whose gradient depends on the weight: sum of c w^2 / 2 + w^4 / 4."""
    factors = torch.linspace(0.5, 2.0, weight.numel(), dtype=weight.dtype).reshape(weight.shape)
    return (factors * weight.square() / 2 + weight**4 / 4).sum()


def gradient(weight):
    return np.linspace(0.5, 2.0, weight.size).reshape(weight.shape) * weight + weight**3


def drawn(seed, *shape):
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def train(optimizer, parameters, rates):
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        sum(quadratic(parameter) for parameter in parameters).backward()
        optimizer.step()


def test_five_steps_of_changing_learning_rate_against_the_formula():
    """v <- mu v - lr g; p <- p + mu v - lr g, with g the gradient of loss + decay |p|^2 / 2."""
    decayed, plain = drawn(0, 3, 4), drawn(1, 5)
    optimizer = LasagneNesterovSGD([{"params": [decayed], "weight_decay": 0.3}, {"params": [plain]}], momentum=0.9)
    expected = []
    for parameter, decay in ((decayed, 0.3), (plain, 0.0)):
        p, v = parameter.detach().numpy().copy(), 0.0
        for rate in RATES:
            g = gradient(p) + decay * p
            v = 0.9 * v - rate * g
            p = p + 0.9 * v - rate * g
        expected.append(p)
    train(optimizer, [decayed, plain], RATES)
    for parameter, reference in zip([decayed, plain], expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), reference, rtol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equals_torchs_at_a_constant_learning_rate(momentum):
    ours, reference = drawn(0, 6), drawn(0, 6)
    train(LasagneNesterovSGD([ours], momentum=momentum, weight_decay=0.1), [ours], [0.05] * 6)
    options = {"momentum": momentum, "nesterov": momentum > 0, "weight_decay": 0.1}
    train(torch.optim.SGD([reference], lr=0.05, **options), [reference], [0.05] * 6)
    torch.testing.assert_close(ours, reference, rtol=1e-12, atol=0)


def test_continues_from_its_state():
    whole, split = drawn(0, 6), drawn(0, 6)
    train(LasagneNesterovSGD([whole]), [whole], RATES)
    first = LasagneNesterovSGD([split])
    train(first, [split], RATES[:2])
    second = LasagneNesterovSGD([split], lr=7.0)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["lr"] == RATES[1]
    train(second, [split], RATES[2:])
    assert torch.equal(whole, split)


def test_parameters_without_gradient_stay_and_gradients_are_not_changed():
    used, unused = drawn(0, 3), drawn(1, 3)
    optimizer = LasagneNesterovSGD([used, unused], weight_decay=0.5)
    used.grad = torch.ones_like(used)
    before = unused.detach().clone()
    assert optimizer.step(lambda: 3.0) == 3.0
    assert torch.equal(unused, before)
    assert unused not in optimizer.state
    assert used.grad.eq(1).all()
    optimizer.zero_grad()
    optimizer.step()
