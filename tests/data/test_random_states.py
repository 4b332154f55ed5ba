"""States of generators that come out of a checkpoint: set as a whole, or refused as a whole."""

import random

import numpy as np
import pytest
import torch

from lit_gelu.data import CorruptDataError
from lit_gelu.data.random_states import random_states, set_random_states


def drawn():
    """One number out of every generator, each of which goes on."""
    return random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002


def of_numpy(state=None, **changes):
    """States with another state of NumPy's generator."""
    numpy = random_states()["numpy"]
    return {"numpy": numpy | {"state": numpy["state"] | (state or {})} | changes}


def test_the_same_numbers_come_again():
    states = random_states()
    first = drawn()
    assert drawn() != first
    set_random_states(states)
    assert drawn() == first


DAMAGED = {
    "none": {"python": None},
    "python: no list": {"python": 3},
    "python: two parts": {"python": [3, []]},
    "python: few numbers": {"python": [3, [1, 2, 3], None]},
    "python: no numbers": {"python": [3, ["a"] * 625, None]},
    "python: negative": {"python": [3, [-1] * 625, None]},
    "python: far on": {"python": [3, [1] * 624 + [10**6], None]},
    "numpy: text": {"numpy": "state"},
    "numpy: another generator": of_numpy(bit_generator="PCG64"),
    "numpy: far on": of_numpy({"pos": 10**6}),  # NumPy reads there, and the process ends
    "numpy: just too far on": of_numpy({"pos": 625}),
    "numpy: before the start": of_numpy({"pos": -1}),
    "numpy: nowhere": of_numpy({"pos": float("nan")}),
    "numpy: few numbers": of_numpy({"key": [1, 2, 3]}),
    "numpy: large numbers": of_numpy({"key": [2**40] * 624}),
    "numpy: no numbers": of_numpy({"key": ["a"] * 624}),
    "torch: text": {"torch": "state"},
    "torch: few bytes": {"torch": torch.zeros(3, dtype=torch.uint8)},
    "torch: zeros": {"torch": torch.zeros(5056, dtype=torch.uint8)},
    "torch: floats": {"torch": torch.zeros(5056)},
}


@pytest.mark.parametrize("change", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_state_is_refused_before_anything_is_set(change):
    before, states = random_states(), random_states() | change
    expected = drawn()
    set_random_states(before)
    with pytest.raises(CorruptDataError, match=r"random states of the checkpoint are damaged .*Resume from another"):
        set_random_states(states)
    assert drawn() == expected


@pytest.mark.parametrize("states", [None, [], {}, "states"])
def test_what_is_no_states_at_all(states):
    with pytest.raises(CorruptDataError):
        set_random_states(states)
