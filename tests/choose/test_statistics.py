"""Intervals, tests and corrections against scipy, how often they are wrong, and what is said of them."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from lit_gelu.choose.statistics import FEWEST_SEEDS, Metric, all_differences, holm, paired_test, verdict

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
        (pair,) = all_differences({"a": SPREAD[:seeds], "b": NEAR[:seeds]})
        assert (pair.low is None) == (pair.high is None) == (seeds < FEWEST_SEEDS)
        assert pair.p is not None


@pytest.mark.parametrize("seeds", [5, 8])
def test_errors_that_differ_by_one_sample_with_every_seed_count_by_their_signs(seeds):
    # As Lightning logs them: shares of 100 samples in float32, which are 0.01 apart but for rounding.
    wrong = [37, 36, 2, 55, 91, 13, 64, 28][:seeds]
    values = {label: (torch.tensor(wrong) / 100 - less).tolist() for label, less in {"a": 0.0, "b": 0.01}.items()}
    (pair,) = all_differences(values)
    assert pair.p == stats.binomtest(seeds, seeds).pvalue
    assert pair.is_decided == (seeds == 8)


def test_rounding_alone_is_no_difference():
    values = torch.rand(8, generator=torch.Generator().manual_seed(0)) + 1
    (pair,) = all_differences({"a": values.tolist(), "b": torch.nextafter(values, torch.tensor(9.0)).tolist()})
    assert not pair.equal
    assert (pair.p, pair.is_decided) == (1, False)


def test_holms_correction():
    # Holm 1979: the smallest times their number, and none below the one before.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_pairing_takes_the_spread_of_seeds_out():
    # Of each seed both are 0.1 apart, but for a little; the seeds are far apart.
    seeds = [0.1, 2.0, 5.0, 3.0, 9.0]
    more = [seed + 0.1 + 0.01 * number for number, seed in enumerate(seeds)]
    assert all_differences({"a": more, "b": seeds})[0].is_decided
    assert not all_differences({"a": more, "b": seeds[::-1]})[0].is_decided


@pytest.mark.parametrize("labels", [2, 5])
def test_false_alarms(labels):
    """Of candidates that do not differ, one comparison in twenty may say that any pair does."""
    drawn = np.random.default_rng(labels).standard_normal((200, labels, 5))
    alarms = sum(
        any(pair.is_decided for pair in all_differences({str(n): list(row) for n, row in enumerate(values)}))
        for values in drawn
    )
    assert alarms / len(drawn) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(drawn))


def sentences(values, baseline=None, mode="min", seeds=5):
    return verdict(Metric("val_x", "val", mode), list(values), all_differences(values), seeds, baseline)


VALUES = {
    "gelu": SPREAD,
    "again": SPREAD,
    "silu": SPREAD[::-1],
    "relu": [value + 0.2 + 0.001 * place for place, value in enumerate(SPREAD)],
}


@pytest.mark.parametrize(("mode", "word", "back"), [("min", "better", "worse"), ("max", "worse", "better")])
def test_a_verdict_is_of_the_best_and_of_the_baseline_with_the_p_of_the_tests(mode, word, back):
    same, best, baseline, how = sentences(VALUES, "relu", mode)
    assert same.startswith("gelu and again gave the same numbers with every seed")
    p = {d.to: d.p for d in all_differences(VALUES) if d.of == "gelu"}
    assert p["relu"] < 1e-4
    assert best == f"gelu is {word} than relu (p < 0.0001); not told apart from silu (p = {p['silu']:.3g})."
    assert baseline.startswith(f"relu is {back} than gelu, again and silu (")
    assert how == "p is that of Student's test of val_x over 5 seeds, corrected for 6 pairs."


def test_too_few_seeds_or_candidates_decide_nothing():
    for values, seeds in (({"a": [0.1, 0.1], "b": [0.5, 0.6]}, 2), ({"a": SPREAD}, 5)):
        (sentence,) = sentences(values, seeds=seeds)
        assert sentence.startswith("Nothing is decided")
