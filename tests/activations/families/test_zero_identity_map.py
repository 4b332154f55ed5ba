"""The stochastic zero-identity map."""

import math

import pytest
import torch
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.activations.functional import derivative, gelu, zero_identity_map

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", FLOATING)
def test_keeps_each_element_with_the_probability_of_its_gate(dtype):
    count = 100_000
    for x in (-2.0, 0.25, 1.5):
        y = zero_identity_map(torch.full((count,), x, dtype=dtype), generator=_generator())
        probability = 0.5 * math.erfc(-x / math.sqrt(2))
        assert set(y.unique().tolist()) == {0.0, x}  # no division by the probability
        spread = math.sqrt(probability * (1 - probability) / count)
        assert abs((y != 0).double().mean().item() - probability) < 4 * spread


@pytest.mark.parametrize("dtype", FLOATING)
def test_its_gradient_is_the_mask_alone(dtype):
    x = torch.randn(1000, generator=_generator(1)).to(dtype).requires_grad_()
    y = zero_identity_map(x, generator=_generator())
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, (y != 0).to(dtype))


def test_the_generator_alone_decides():
    x = torch.zeros(100) + 0.3
    state = torch.random.get_rng_state()
    first, second = (zero_identity_map(x, generator=_generator(7)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(first, zero_identity_map(x, generator=_generator(8)))


@pytest.mark.parametrize("dtype", FLOATING)
def test_infinities_and_nan(dtype):
    x = torch.tensor([-math.inf, math.inf, math.nan], dtype=dtype)
    for training in (True, False):
        y = zero_identity_map(x, training=training)
        assert y[:2].tolist() == [0.0, math.inf]
        assert y[2].isnan()


def test_without_training_it_is_its_expectation():
    x = torch.linspace(-9, 9, 101, dtype=torch.float64)
    assert torch.equal(zero_identity_map(x, training=False), gelu(x))
    module = activations.create("soi").eval()
    assert torch.equal(module(x), F.gelu(x))
    for order in (1, 2):
        assert torch.equal(derivative(module, x, order), derivative("gelu", x, order))
    info = activations.info("soi")
    assert info.stochastic
    assert info.minimum == activations.info("gelu").minimum
