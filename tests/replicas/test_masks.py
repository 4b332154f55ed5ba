"""Masks against torch's own."""

import pytest
import torch

from lit_gelu.replicas.masks import keep_mask_, torch_compares_53_bits

CHANCES = [0.5, 1 - (1 - 0.8), 0.1, 1 / 3, 1e-12, 1 - 1e-12, 0.0, 1.0]


@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (16, 7), (3, 128, 5), (0,)])
def test_masks_and_the_generator_are_those_of_bernoulli(chance, dtype, shape):
    mine, its = (torch.Generator().manual_seed(5) for _ in range(2))
    for _ in range(2):
        mask = keep_mask_(torch.empty(shape, dtype=dtype), chance, mine)
        assert torch.equal(mask, torch.empty(shape, dtype=dtype).bernoulli_(chance, generator=its))
    assert torch.equal(mine.get_state(), its.get_state())


def test_parts_of_a_stack_are_filled_in_place():
    stack = torch.full((2, 8, 3), 7.0)
    keep_mask_(stack[1], 0.5, torch.Generator().manual_seed(0))
    wanted = torch.empty(8, 3).bernoulli_(0.5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(stack[1], wanted)
    assert torch.equal(stack[0], torch.full((8, 3), 7.0))


def test_a_build_that_draws_otherwise_is_noticed(monkeypatch):
    torch_compares_53_bits.cache_clear()
    monkeypatch.setattr("lit_gelu.replicas.masks._BITS", 24)
    assert not torch_compares_53_bits(torch.float32)
    torch_compares_53_bits.cache_clear()
