"""Dead units: against a brute-force look back over all events, and the counted probability of a false one."""

import math

import numpy as np
import pytest
import torch

from lit_gelu.curvature import DeadUnitWindow
from lit_gelu.errors import ArgumentError


def test_counts_are_those_of_a_look_back_over_all_events():
    rng = np.random.default_rng(0)
    masks = rng.random((40, 9)) < np.array([0, 0.02, 0.1, 0.3, 0.5, 1, 0.05, 0, 0.2])
    window = DeadUnitWindow(5, [4, 0, 5])
    for event in range(40):
        window.update(torch.tensor(masks[event]))
        assert window.is_full == (event >= 4)
        if window.is_full:
            dead = ~masks[event - 4 : event + 1].any(0)
            expected = [dead[:4].mean(), math.nan, dead[4:].mean()]
            assert window.shares().tolist() == pytest.approx(expected, nan_ok=True)


def test_state_goes_on_in_mid_window():
    rng = np.random.default_rng(1)
    masks = torch.tensor(rng.random((20, 6)) < 0.3)
    whole, first = DeadUnitWindow(4, [6]), DeadUnitWindow(4, [6])
    for mask in masks[:3]:
        whole.update(mask)
        first.update(mask)
    second = DeadUnitWindow(4, [6])
    second.load_state_dict(first.state_dict())
    for mask in masks[3:]:
        whole.update(mask)
        second.update(mask)
        assert torch.equal(whole.shares(), second.shares())
        assert whole.is_full == second.is_full


def test_refuses_no_window():
    with pytest.raises(ArgumentError):
        DeadUnitWindow(0, [1])


def test_a_site_that_comes_later_begins_its_own_window():
    window = DeadUnitWindow(2, [2, 0])
    for _ in range(3):
        window.update(torch.tensor([False, True]))
    grown = window.grown([2, 3])
    assert grown.shares().tolist() == pytest.approx([0.5, math.nan], nan_ok=True)
    again = DeadUnitWindow(2, [2, 3])
    again.load_state_dict(grown.state_dict())
    for each in (grown, again):
        each.update(torch.tensor([False, True, False, False, True]))
        assert each.shares().tolist() == pytest.approx([0.5, math.nan], nan_ok=True)
        each.update(torch.tensor([False, True, False, False, False]))
        assert each.shares().tolist() == pytest.approx([0.5, 2 / 3])
