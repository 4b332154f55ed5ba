"""A replica's random numbers against those of torch's global generator."""

import torch
from torch import nn

from lit_gelu.replicas.streams import Streams


def streams(*seeds):
    return Streams([torch.Generator().manual_seed(seed).get_state() for seed in seeds])


def test_dropout_is_that_of_nn_dropout():
    chances, inputs = [1 - 0.8, 0.0, 0.5, 1.0], torch.randn(4, 6, 33)
    ours = streams(5, 6, 7, 8)
    found = inputs * ours.dropout_factors(inputs, chances)
    for replica, chance in enumerate(chances):
        torch.manual_seed(5 + replica)
        assert torch.equal(nn.Dropout(chance)(inputs[replica]), found[replica])
        assert torch.equal(torch.get_rng_state(), ours.states()[replica])


def test_a_stream_stands_for_the_global_generator():
    ours, before = streams(1, 2), torch.get_rng_state()
    with ours.of(1):
        drawn = torch.rand(3)
    with ours.of(1):
        further = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.cat([drawn, further]), torch.rand(6, generator=torch.Generator().manual_seed(2)))
    assert torch.equal(ours.states()[0], streams(1).states()[0])


def test_saved_states_come_back():
    ours = streams(1, 2)
    saved = ours.states()
    first = ours.dropout_factors(torch.ones(2, 9), [0.5, 0.5])
    ours.set_states(saved)
    assert torch.equal(ours.dropout_factors(torch.ones(2, 9), [0.5, 0.5]), first)
