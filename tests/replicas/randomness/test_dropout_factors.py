"""What dropout multiplies with against torch's own."""

import pytest
import torch

from lit_gelu.replicas.randomness.dropout_factors import dropout_factors_, torch_compares_53_bits
from lit_gelu.replicas.written.factors import FactorsAhead

CHANCES = [0.5, 1 - 0.8, 0.1, 1 / 3, 1e-12, 1 - 1e-12]


@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (16, 7), (3, 128, 5), (0,)])
def test_factors_and_the_generator_are_those_of_bernoulli(chance, dtype, shape):
    mine, its = (torch.Generator().manual_seed(5) for _ in range(2))
    for _ in range(2):
        factors = dropout_factors_(torch.empty(shape, dtype=dtype), chance, mine)
        wanted = torch.empty(shape, dtype=dtype).bernoulli_(1 - chance, generator=its).div_(1 - chance)
        assert torch.equal(factors, wanted)
    assert torch.equal(mine.get_state(), its.get_state())


def test_dropout_itself():
    inputs, generator = torch.ones(64, 9), torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    assert torch.equal(torch.nn.functional.dropout(inputs, 0.3), dropout_factors_(inputs.clone(), 0.3, generator))
    assert torch.equal(torch.get_rng_state(), generator.get_state())


def test_a_chance_of_one_draws_nothing():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert not dropout_factors_(torch.ones(5), 1.0, generator).any()
    assert torch.equal(generator.get_state(), before)


def test_parts_of_a_stack_are_filled_in_place():
    stack, words = torch.full((2, 8, 3), 7.0), torch.empty(8, 3, dtype=torch.int64)
    dropout_factors_(stack[1], 0.5, torch.Generator().manual_seed(0), words)
    wanted = torch.empty(8, 3).bernoulli_(0.5, generator=torch.Generator().manual_seed(0)) * 2
    assert torch.equal(stack[1], wanted)
    assert torch.equal(stack[0], torch.full((8, 3), 7.0))


@pytest.mark.parametrize("steps", [1, 2, 5, 7])
def test_factors_drawn_ahead_are_those_of_single_steps(steps):
    mine, its = (torch.Generator().manual_seed(5) for _ in range(2))
    shapes = [(4, 7), (4, 3)]
    ahead = FactorsAhead(0.2, mine, shapes, torch.empty(3, 40), torch.empty(3, 40, dtype=torch.int64))
    for _ in range(2):
        ahead.begin(steps)
        for _ in range(steps):
            for layer, shape in enumerate(shapes):
                assert torch.equal(torch.from_numpy(ahead.of(layer)), dropout_factors_(torch.empty(shape), 0.2, its))
        assert torch.equal(mine.get_state(), its.get_state())


def test_a_build_that_draws_otherwise_is_noticed(monkeypatch):
    torch_compares_53_bits.cache_clear()
    monkeypatch.setattr("lit_gelu.replicas.randomness.dropout_factors._BITS", 24)
    assert not torch_compares_53_bits(torch.float32)
    torch_compares_53_bits.cache_clear()
