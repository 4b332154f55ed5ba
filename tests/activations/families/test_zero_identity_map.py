"""The stochastic zero-identity map."""

import math

import pytest
import torch
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional import derivative, gelu, silu, zero_identity_map

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
GATES = {"normal": (gelu, F.gelu), "logistic": (silu, F.silu)}
both_gates = pytest.mark.parametrize("gate", GATES)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@both_gates
@pytest.mark.parametrize("dtype", FLOATING)
def test_keeps_each_element_with_the_probability_of_its_gate(dtype, gate):
    count = 100_000
    for x in (-2.0, 0.25, 1.5):
        y = zero_identity_map(torch.full((count,), x, dtype=dtype), generator=_generator(), gate=gate)
        probability = 0.5 * math.erfc(-x / math.sqrt(2)) if gate == "normal" else 1 / (1 + math.exp(-x))
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


@both_gates
def test_without_training_it_is_its_expectation(gate):
    x = torch.linspace(-9, 9, 101, dtype=torch.float64)
    exact, by_torch = GATES[gate]
    assert torch.equal(zero_identity_map(x, training=False, gate=gate), exact(x))
    module = activations.create("zero_identity_map", gate=gate).eval()
    assert torch.equal(module(x), by_torch(x))
    for order in (1, 2):
        assert torch.equal(derivative(module, x, order), derivative(exact.__name__, x, order))


@both_gates
def test_it_may_draw_in_evaluation(gate):
    x = torch.full((4000,), 0.7)
    drawn = activations.create("zero_identity_map", gate=gate, evaluation="stochastic").eval()(x)
    assert set(drawn.unique().tolist()) == {0.0, x[0].item()}


def test_facts_and_specs():
    assert not activations.info("soi").stochastic_in_evaluation
    info = activations.info("soi(evaluation='stochastic', gate='logistic')")
    assert (info.stochastic, info.stochastic_in_evaluation) == (True, True)
    assert info.minimum == activations.info("silu").minimum
    assert str(activations.spec_of(activations.create(info.spec))) == str(info.spec)
    assert "evaluation='stochastic'" in repr(activations.create(info.spec))
    assert repr(activations.create("soi")) == "ZeroIdentityMap()"


@pytest.mark.parametrize("arguments", [{"gate": "cauchy"}, {"evaluation": "train"}])
def test_refuses_other_options(arguments):
    with pytest.raises(ActivationArgumentError):
        activations.create("zero_identity_map", **arguments)
