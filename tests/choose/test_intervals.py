"""Intervals, tests and corrections against scipy, and how often they are wrong."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from lit_gelu.choose.intervals import (
    FEWEST_SEEDS,
    all_differences,
    bootstrap_interval,
    holm,
    resamples,
    student_chance,
    student_tail,
    tail_of_percentiles,
)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8, 29])
@pytest.mark.parametrize("t", [0.0, 0.3, 2.5, 9.0])
def test_students_distribution(t, freedom):
    assert student_tail(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("count", [5, 6, 8, 30])
def test_percentiles_are_widened(count):
    t = stats.t.ppf(0.975, count - 1)
    assert tail_of_percentiles(count, 0.95) == pytest.approx(stats.norm.cdf(-math.sqrt(count / (count - 1)) * t))


@pytest.mark.parametrize("count", [2, 5, 8])
def test_all_resamples_are_counted(count):
    shares, chances = resamples(count)
    assert chances.sum() == pytest.approx(1)
    numbers = np.arange(1.0, count + 1) ** 2
    if count <= 5:
        every = [np.mean(drawn) for drawn in itertools.product(numbers, repeat=count)]
        assert shares @ numbers @ chances == pytest.approx(np.mean(every))
        assert (shares @ numbers) ** 2 @ chances == pytest.approx(np.mean(np.square(every)))


@pytest.mark.parametrize("count", [5, 7, 12])
def test_the_interval_is_that_of_scipys_bootstrap(count):
    apart = np.random.default_rng(count).normal(0.3, 1, count)
    level = 1 - 2 * tail_of_percentiles(count, 0.95)
    found = stats.bootstrap(
        (apart,), np.mean, method="percentile", confidence_level=level, n_resamples=100_000, batch=10_000, rng=0
    ).confidence_interval
    assert bootstrap_interval(list(apart)) == pytest.approx((found.low, found.high), abs=0.08 * np.std(apart))


def test_of_many_seeds_it_is_students():
    apart = np.random.default_rng(0).normal(0.3, 1, 60)
    wanted = stats.t.interval(0.95, 59, apart.mean(), stats.sem(apart))
    assert bootstrap_interval(list(apart)) == pytest.approx(wanted, abs=0.03)


def test_few_seeds_have_no_interval():
    assert bootstrap_interval([1.0] * (FEWEST_SEEDS - 1)) is None
    assert bootstrap_interval([1.0] * FEWEST_SEEDS) == (1.0, 1.0)


def test_students_test_is_scipys():
    apart = [0.2, -0.1, 0.4, 0.5, 0.3]
    assert student_chance(apart) == pytest.approx(stats.ttest_1samp(apart, 0).pvalue)


def test_equal_differences_count_by_their_signs():
    assert student_chance([0.25] * 5) == stats.binomtest(5, 5).pvalue == 0.0625
    assert student_chance([0.0] * 5) == 1


@pytest.mark.parametrize("seeds", [5, 8])
def test_errors_that_differ_by_one_sample_with_every_seed_count_by_their_signs(seeds):
    # As Lightning logs them: shares of 100 samples in float32, which are 0.01 apart but for rounding.
    wrong = [37, 36, 2, 55, 91, 13, 64, 28][:seeds]
    values = {label: (torch.tensor(wrong) / 100 - less).tolist() for label, less in {"a": 0.0, "b": 0.01}.items()}
    assert len({a - b for a, b in zip(*values.values(), strict=True)}) > 1
    (found,) = all_differences(values)
    assert found.p == stats.binomtest(seeds, seeds).pvalue
    assert found.is_decided == (seeds == 8)


def test_rounding_alone_is_no_difference():
    values = torch.rand(8, generator=torch.Generator().manual_seed(0)) + 1
    (found,) = all_differences({"a": values.tolist(), "b": torch.nextafter(values, torch.tensor(9.0)).tolist()})
    assert not found.equal
    assert (found.p, found.is_decided) == (1, False)


def test_a_spread_beyond_rounding_is_tested_by_students_test():
    apart = [0.01, 0.01001, 0.00999, 0.01002, 0.01]  # of values near 1: ten times what rounding makes
    base = [0.9, 0.8, 0.7, 0.95, 1.0]
    (found,) = all_differences({"a": [b + d for b, d in zip(base, apart, strict=True)], "b": base})
    assert found.p == pytest.approx(stats.ttest_1samp(apart, 0).pvalue, rel=1e-3, abs=1e-15)


def test_holms_correction():
    # Holm 1979: the smallest times their number, and none below the one before.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_difference_is_one_minus_the_other():
    values = {"a": [3.0, 3.1, 3.2, 3.0, 3.3], "b": [1.0, 1.2, 1.1, 1.1, 1.2]}
    (found,) = all_differences(values)
    assert (found.of, found.to, found.seeds, found.is_decided) == ("a", "b", 5, True)
    assert found.mean == pytest.approx(2.0)
    assert found.low < 2 < found.high
    back = found.reversed()
    assert (back.of, back.mean, back.low, back.high) == ("b", -found.mean, -found.high, -found.low)


def test_pairing_takes_the_spread_of_seeds_out():
    # Of each seed both are 0.1 apart, but for a little; the seeds are far apart.
    seeds = [0.1, 2.0, 5.0, 3.0, 9.0]
    (found,) = all_differences({"a": [s + 0.1 + 0.01 * n for n, s in enumerate(seeds)], "b": seeds})
    assert found.is_decided
    assert not all_differences({"a": [s + 0.1 + 0.01 * n for n, s in enumerate(seeds)], "b": seeds[::-1]})[0].is_decided


def test_equal_numbers_are_no_difference():
    (found,) = all_differences({"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [1.0, 2.0, 3.0, 4.0, 5.0]})
    assert found.equal
    assert not found.is_decided
    assert found.mean == 0


@pytest.mark.parametrize("labels", [2, 5])
def test_false_alarms(labels):
    """Of candidates that do not differ, one comparison in twenty may say that any pair does."""
    drawn = np.random.default_rng(labels).standard_normal((600, labels, 5))
    alarms = sum(
        any(found.is_decided for found in all_differences({str(n): list(row) for n, row in enumerate(values)}))
        for values in drawn
    )
    assert alarms / len(drawn) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(drawn))  # .077; by percentiles alone .16 and .5
