"""The stochastic zero-identity map."""

import math

import pytest
import torch
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional import (
    derivative,
    gelu,
    gelu_derivative,
    silu,
    silu_derivative,
    zero_identity_map,
    zero_identity_map_derivative,
)

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", FLOATING)
def test_keeps_each_element_with_probability_phi(dtype):
    count = 100_000
    for x in (-2.0, -0.5, 0.25, 1.5):
        y = zero_identity_map(torch.full((count,), x, dtype=dtype), generator=_generator())
        probability = 0.5 * math.erfc(-x / math.sqrt(2))
        assert set(y.unique().tolist()) == {0.0, x}  # no division by the probability
        spread = math.sqrt(probability * (1 - probability) / count)
        assert abs((y != 0).double().mean().item() - probability) < 4 * spread


def test_its_mean_is_gelu():
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    mean = zero_identity_map(x.expand(200_000, -1), generator=_generator()).mean(dim=0)
    assert ((mean - gelu(x)).abs() <= 4 * x.abs() * 0.5 / math.sqrt(200_000)).all()


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


def test_without_training_it_is_exact_gelu():
    x = torch.linspace(-9, 9, 101, dtype=torch.float64)
    assert torch.equal(zero_identity_map(x, training=False), gelu(x))
    for order in (1, 2):
        assert torch.equal(zero_identity_map_derivative(x, order), gelu_derivative(x, order))


def test_refuses_what_is_not_floating_and_other_orders():
    with pytest.raises(ActivationArgumentError):
        zero_identity_map(torch.arange(3))
    with pytest.raises(ActivationArgumentError):
        zero_identity_map_derivative(torch.zeros(1), order=3)


@pytest.mark.parametrize("dtype", FLOATING)
def test_a_logistic_gate_keeps_with_the_logistic_probability(dtype):
    count = 100_000
    for x in (-2.0, 0.25, 1.5):
        y = zero_identity_map(torch.full((count,), x, dtype=dtype), generator=_generator(), gate="logistic")
        probability = 1 / (1 + math.exp(-x))
        assert set(y.unique().tolist()) == {0.0, x}
        spread = math.sqrt(probability * (1 - probability) / count)
        assert abs((y != 0).double().mean().item() - probability) < 4 * spread


def test_without_training_a_logistic_gate_is_silu():
    x = torch.linspace(-9, 9, 101, dtype=torch.float64)
    assert torch.equal(zero_identity_map(x, training=False, gate="logistic"), silu(x))
    for order in (1, 2):
        assert torch.equal(zero_identity_map_derivative(x, order, gate="logistic"), silu_derivative(x, order))
        module = activations.create("zero_identity_map(gate='logistic')")
        assert torch.equal(derivative(module, x, order), silu_derivative(x, order))


@pytest.mark.parametrize("gate", ["normal", "logistic"])
def test_the_mean_of_passes(gate):
    """Values are multiples of x / passes, their spread is the binomial one, and the gradient is the mean mask."""
    passes, count, x = 16, 20_000, 0.4
    values = torch.full((count,), x, dtype=torch.float64, requires_grad=True)
    y = zero_identity_map(values, generator=_generator(), gate=gate, passes=passes)
    (gradient,) = torch.autograd.grad(y.sum(), values)
    torch.testing.assert_close(gradient, y.detach() / x)
    kept = gradient * passes
    torch.testing.assert_close(kept, kept.round())
    probability = 0.5 * math.erfc(-x / math.sqrt(2)) if gate == "normal" else 1 / (1 + math.exp(-x))
    variance = passes * probability * (1 - probability)
    assert abs(kept.mean().item() - passes * probability) < 4 * math.sqrt(variance / count)
    assert kept.var().item() == pytest.approx(variance, rel=0.05)
    special = torch.tensor([-math.inf, math.inf, math.nan])
    assert zero_identity_map(special, passes=3)[:2].tolist() == [0.0, math.inf]
    assert zero_identity_map(special, passes=3)[2].isnan()


@pytest.mark.parametrize("gate", ["normal", "logistic"])
def test_options_for_evaluation(gate):
    x = torch.full((4000,), 0.7)
    expected = F.gelu(x) if gate == "normal" else F.silu(x)
    module = activations.create("zero_identity_map", gate=gate).eval()
    assert torch.equal(module(x), expected)
    torch.manual_seed(0)
    drawn = activations.create("zero_identity_map", gate=gate, evaluation="stochastic").eval()(x)
    assert set(drawn.unique().tolist()) == {0.0, x[0].item()}
    mean = activations.create("zero_identity_map", gate=gate, evaluation="mean", passes=64)
    assert set(mean.train()(x).unique().tolist()) == {0.0, x[0].item()}  # in training it is one mask
    averaged = mean.eval()(x)
    assert averaged.mean().item() == pytest.approx(expected[0].item(), abs=4 * 0.35 / math.sqrt(64 * 4000))
    assert averaged.std().item() == pytest.approx(drawn.std().item() / 8, rel=0.1)


def test_facts_and_specs():
    assert not activations.info("soi").stochastic_in_evaluation
    info = activations.info("soi(evaluation='mean', passes=4, gate='logistic')")
    assert info.stochastic
    assert info.stochastic_in_evaluation
    assert info.minimum == activations.info("silu").minimum
    assert str(activations.spec_of(activations.create(info.spec))) == str(info.spec)
    assert "evaluation='mean', passes=4" in repr(activations.create(info.spec))
    assert repr(activations.create("soi")) == "ZeroIdentityMap()"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gate": "cauchy"}, "gate='cauchy' is not accepted"),
        ({"evaluation": "train"}, "evaluation='train' is not accepted"),
        ({"evaluation": "mean", "passes": 0}, "passes=0 is not accepted"),
        ({"passes": 4}, "passes=4 needs evaluation='mean'"),
    ],
)
def test_refuses_other_options(arguments, message):
    with pytest.raises(ActivationArgumentError, match=message):
        activations.create("zero_identity_map", **arguments)
