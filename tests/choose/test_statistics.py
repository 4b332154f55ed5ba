"""Intervals, tests and corrections against scipy, how often they are wrong, and what is said of them."""

import math
import statistics

import numpy as np
import pytest
import torch
from scipy import stats

from lit_gelu.choose.statistics import FEWEST_SEEDS, Verdict, all_differences, holm, paired_test

SPREAD = [0.0, 0.01, 0.02, 0.03, 0.04]
NEAR = [0.01, 0.025, 0.025, 0.045, 0.046]  # each is more


def test_the_test_and_the_interval_are_students():
    sample = np.random.default_rng(0).normal(0.3, 1, 7)
    p, low, high = paired_test(sample)
    t = sample.mean() / stats.sem(sample)
    assert p == pytest.approx(2 * stats.t.sf(abs(t), 6))
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 6, sample.mean(), stats.sem(sample)))


def test_few_seeds_have_no_interval():
    for seeds in (FEWEST_SEEDS - 1, FEWEST_SEEDS):
        (found,) = all_differences({"a": SPREAD[:seeds], "b": NEAR[:seeds]})
        assert (found.low is None) == (found.high is None) == (seeds < FEWEST_SEEDS)
        assert found.p is not None


@pytest.mark.parametrize("seeds", [5, 8])
def test_errors_that_differ_by_one_sample_with_every_seed_count_by_their_signs(seeds):
    # As Lightning logs them: shares of 100 samples in float32, which are 0.01 apart but for rounding.
    wrong = [37, 36, 2, 55, 91, 13, 64, 28][:seeds]
    values = {label: (torch.tensor(wrong) / 100 - less).tolist() for label, less in {"a": 0.0, "b": 0.01}.items()}
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
    (found,) = all_differences({"a": [3.0, 3.1, 3.2, 3.0, 3.3], "b": [1.0, 1.2, 1.1, 1.1, 1.2]})
    assert (found.of, found.to, found.seeds, found.is_decided) == ("a", "b", 5, True)
    assert found.mean == pytest.approx(2.0)
    back = found.reversed()
    assert (back.of, back.mean, back.low, back.high) == ("b", -found.mean, -found.high, -found.low)


def test_pairing_takes_the_spread_of_seeds_out():
    # Of each seed both are 0.1 apart, but for a little; the seeds are far apart.
    seeds = [0.1, 2.0, 5.0, 3.0, 9.0]
    more = [seed + 0.1 + 0.01 * number for number, seed in enumerate(seeds)]
    assert all_differences({"a": more, "b": seeds})[0].is_decided
    assert not all_differences({"a": more, "b": seeds[::-1]})[0].is_decided


def test_equal_numbers_are_no_difference():
    (found,) = all_differences({"a": SPREAD, "b": SPREAD})
    assert (found.equal, found.is_decided, found.mean) == (True, False, 0)


@pytest.mark.parametrize("labels", [2, 5])
def test_false_alarms(labels):
    """Of candidates that do not differ, one comparison in twenty may say that any pair does."""
    drawn = np.random.default_rng(labels).standard_normal((200, labels, 5))
    alarms = sum(
        any(found.is_decided for found in all_differences({str(n): list(row) for n, row in enumerate(values)}))
        for values in drawn
    )
    assert alarms / len(drawn) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(drawn))


def shifted(amount, noise=0.001):
    return [amount + value + noise * (-1) ** place * place for place, value in enumerate(SPREAD)]


def said(values, mode="min", seeds=5, baseline=None):
    medians = {label: statistics.median(numbers) for label, numbers in values.items()}
    return Verdict("val_x", mode, medians, all_differences(values), seeds).sentences(baseline)


def test_better_than_some_is_decided_and_the_rest_is_not():
    first, second, third = said({"gelu": SPREAD, "silu": SPREAD[::-1], "relu": shifted(0.2)})
    assert first.startswith("gelu is better than relu: its val_x (median 0.02) is lower. This is decided: ")
    assert second.startswith("Not decided between gelu and silu: ")
    assert third.startswith("Of the others, silu is better than relu ")


def test_p_is_that_of_the_test():
    (sentence,) = said({"gelu": SPREAD, "relu": NEAR})
    assert f"(p = {stats.ttest_rel(SPREAD, NEAR).pvalue:.3g})" in sentence


def test_more_is_better():
    (sentence,) = said({"gelu": shifted(0.2), "relu": SPREAD}, "max")
    assert sentence.startswith("gelu is better than relu: its val_x (median 0.222) is higher.")


@pytest.mark.parametrize(
    ("values", "seeds"),
    [
        ({"gelu": SPREAD, "silu": SPREAD[::-1], "relu": [0.04, 0.0, 0.03, 0.02, 0.01]}, 5),
        ({"gelu": SPREAD, "relu": [value + 0.01 for value in SPREAD]}, 5),  # one number: tested by their signs
        ({"a": [0.1, 0.1, 0.1, 5.0, 9.0], "b": [0.2] * 5}, 5),  # one seed far on the other side is spread
        ({"gelu": [0.1, 0.1], "relu": [0.5, 0.6]}, 2),
        ({"gelu": SPREAD}, 5),
    ],
)
def test_nothing_is_decided(values, seeds):
    assert [sentence for sentence in said(values, seeds=seeds) if not sentence.startswith("Nothing is decided")] == []


def test_the_same_numbers_are_said_once():
    first, *rest = said({"gelu": SPREAD, "again": SPREAD, "thrice": SPREAD, "relu": shifted(0.2)})
    assert first.startswith("gelu, again and thrice gave the same numbers with every seed")
    assert not any("ot decided" in sentence for sentence in rest)
    assert len(said({"gelu": SPREAD, "again": SPREAD}, baseline="again")) == 1


def test_against_a_baseline():
    values = {
        "gelu": SPREAD,
        "silu": SPREAD[::-1],
        "relu": shifted(0.2),
        "elu": shifted(0.21, -0.002),
        "tanh": shifted(0.5, 0.002),  # from relu not by one number with every seed
    }
    last = said(values, baseline="relu")[-1]
    assert last.startswith("Against the baseline relu: gelu and silu are better (p < 0.0001 and ")
    assert "; tanh is worse (" in last
    assert "; elu is not decided (" in last
    assert not said(values, baseline="gelu")[-1].startswith("Against")  # the best is compared with all others already


@pytest.mark.parametrize(("mode", "sign"), [("min", 1), ("max", -1)])
def test_the_best_median_may_be_worse_in_the_mean(mode, sign):
    base, apart = [-5.0, -5.0, 0.0, 5.0, 5.0], [1.0, 1.1, -0.05, 0.9, 1.0]
    values = {"a": [sign * (b + d) for b, d in zip(base, apart, strict=True)], "b": [sign * b for b in base]}
    assert said(values, mode)[0].startswith("b is better than a, though a has the best median")
