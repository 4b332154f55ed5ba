"""Random numbers by key: those of the published generator, even, and not correlated with each other."""

import itertools

import numpy as np
import philox_oracle
import pytest
import torch
from philox_oracle import KNOWN
from scipy import stats

from lit_gelu.tasks.keyed_noise import Key, dropout_factors, kept, words


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_the_oracle_gives_the_published_numbers(counter, key, answer):
    assert philox_oracle.philox(counter, key) == answer


@pytest.mark.parametrize(
    "key", [Key(0, 0, 0), Key(7, 3, 11), Key(-1, 0, 2**40), Key(2**64 - 1, 9, 0, 2), Key(2**63, 1, 2**63)]
)
@pytest.mark.parametrize("count", [1, 8, 129])
def test_words_are_the_oracles(key, count):
    assert words(key, count).tolist() == philox_oracle.words(key.seed, key.site, key.step, count, key.rank)


def test_one_use_leaves_nothing_for_the_next():
    first = words(Key(1, 2, 3), 9)
    words(Key(4, 5, 6), 3)
    assert np.array_equal(words(Key(1, 2, 3), 9), first)


@pytest.mark.parametrize("chance", [0.5, 0.2, 1 - 0.8, 0.999, 2**-31])
def test_the_share_that_is_kept_is_right_to_the_last_of_32_bits(chance):
    highest, scale = kept(chance)
    assert abs((highest + 1) / 2**32 - (1 - chance)) <= 2**-33
    assert scale == 1 / (1 - chance)


def test_words_are_even():
    drawn = words(Key(0, 0, 0), 2**18)
    for shift in (0, 8, 16, 24):
        counts = np.bincount((drawn >> shift) & 255, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6


def test_masks_are_not_correlated():
    count = 2**14
    places = itertools.product((0, 1, 2), (0, 1, 7), (0, 1, 2, 1000))
    masks = np.stack([words(Key(seed, site, step), count) < 2**31 for seed, site, step in places])
    signs = 2.0 * masks - 1
    products = signs @ signs.T / count
    np.fill_diagonal(products, 0)
    assert np.abs(products).max() < 5.5 / np.sqrt(count)
    lags = [np.abs((signs[:, :-lag] * signs[:, lag:]).mean(1)).max() for lag in (1, 2, 4, 8, 128)]
    assert max(lags) < 5.5 / np.sqrt(count - 128)


def test_factors_of_rows():
    keys = [Key(0, 1, 2), Key(0, 1, 2), Key(5, 1, 2), Key(0, 1, 2), Key(0, 1, 2)]
    factors = dropout_factors((5, 3, 7), keys, [0.5, 0.2, 0.5, 0.0, 0.5])
    assert factors.dtype == torch.float32
    for row, (key, highest) in enumerate(zip(keys, (2**31 - 1, round(0.8 * 2**32) - 1, 2**31 - 1), strict=False)):
        expected = torch.tensor(philox_oracle.words(key.seed, 1, 2, 21)).view(3, 7) <= highest
        assert torch.equal(factors[row], expected.float() * (1.25 if row == 1 else 2.0))
    assert torch.equal(factors[3], torch.ones(3, 7))
    assert torch.equal(factors[4], factors[0])


def test_all_is_dropped_by_a_chance_of_one():
    assert torch.equal(dropout_factors((1, 40), [Key(0, 0, 0)], [1.0]), torch.zeros(1, 40))
