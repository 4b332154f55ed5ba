"""A replica's random numbers against those of torch's global generator."""

import random

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from torch import nn

from lit_gelu.data.resumable_loader import python_and_numpy_states
from lit_gelu.replicas import NotReplicableError
from lit_gelu.replicas.randomness.streams import Streams, without_other_draws


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


def drawn():
    return random.random(), *np.random.rand(2), random.gauss(), np.random.randn()  # noqa: NPY002


def test_the_whole_stream_is_pythons_and_numpys_too():
    seed_everything(5, verbose=False)
    five = Streams(streams(1, 2).states(), [python_and_numpy_states()] * 2)
    wanted, before = [drawn() for _ in range(3)], python_and_numpy_states()
    with five.whole_of(1):
        assert drawn() == wanted[0]
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(2)))
    saved = five.others()
    with five.whole_of(0):
        assert drawn() == wanted[0]
    for _ in range(2):
        with five.whole_of(1):
            assert drawn() == wanted[1]
        five.set_others(saved)
    assert python_and_numpy_states() == before


def test_draws_from_other_generators_are_noticed():
    for draw in (random.random, np.random.rand, np.random.randn, lambda: np.random.bytes(4 * 624)):  # noqa: NPY002
        with pytest.raises(NotReplicableError, match="of others"), without_other_draws("of others"):
            draw()
    with without_other_draws("of others"):
        torch.rand(3)
        np.random.default_rng(0).random()
        random.Random(0).random()


def test_saved_states_come_back():
    ours = streams(1, 2)
    saved = ours.states()
    first = ours.dropout_factors(torch.ones(2, 9), [0.5, 0.5])
    ours.set_states(saved)
    assert torch.equal(ours.dropout_factors(torch.ones(2, 9), [0.5, 0.5]), first)
