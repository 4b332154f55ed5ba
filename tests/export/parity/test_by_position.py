"""Positions that differ more often than chance explains, against scipy's binomial distribution."""

import numpy as np
import pytest
from scipy.stats import binom

from lit_gelu.export.parity.by_position import ByPosition, explained_by_chance


@pytest.mark.parametrize("rows", [1, 2, 32, 5000])
@pytest.mark.parametrize(("positions", "share"), [(4096, 5e-4), (300_000, 1e-5), (3, 1e-5), (64, 4e-3), (10, 0.6)])
def test_more_rows_than_chance_explains_are_rarer_than_one_in_a_thousand(rows, positions, share):
    allowed = explained_by_chance(rows, positions, share)
    assert 1 <= allowed <= rows
    assert positions * binom.sf(allowed, rows, share) <= 1e-3  # more than allowed
    assert allowed <= 1 + binom.ppf(1 - 1e-6 / positions, rows, min(1.0, np.e * share))  # and not many more than that


def test_no_share_leaves_one_row():
    assert explained_by_chance(1000, 10, 0.0) == 1


def test_the_worst_position_beside_pytorchs_own():
    found, own = ByPosition(), ByPosition()
    for counts, wrong in ((found, [(0, 1), (2, 1)]), (own, [(2, 1)])):
        differs = np.zeros((50, 3, 2), bool)
        for place in wrong:
            differs[:20, *place] = True
        counts.add(differs)
    worst = found.worst(own, 1e-5)
    assert (worst.index, worst.index_error, worst.index_scale) == ("[:, 0, 1]", 20, 50)
    assert worst.index_error > worst.index_limit
    again = ByPosition()
    again.add(differs | (np.arange(6).reshape(3, 2) == 1))
    own.take_larger(again)
    assert found.worst(own, 1e-5).index_error <= found.worst(own, 1e-5).index_limit


def test_rows_of_several_lengths_and_lists_of_numbers():
    found = ByPosition()
    found.add(np.ones(7, bool))
    assert found.worst(ByPosition(), 1e-5) is None
    for length in (3, 4, 3):
        found.add(np.ones((2, length), bool) & (np.arange(length) == 2))
    worst = found.worst(ByPosition(), 1e-9)
    assert (worst.index, worst.index_error, worst.index_scale) == ("[:, 2]", 4, 4)
