"""The test that may be looked at after every seed: against the integral that it is, and how often it is wrong."""

import math
from unittest import mock

import numpy as np
import pytest
from choice_nets import CPU, ConvNet, Stripes
from scipy import integrate, stats

from lit_gelu.choose import choose, training
from lit_gelu.choose.sequential import chance_of_decision, log_evidence, seeds_needed, seeds_stated, sequential_test
from lit_gelu.errors import ArgumentError


@pytest.mark.parametrize("n", [2, 6, 15, 60])
@pytest.mark.parametrize("t", [0.0, 0.7, 2.5, 6.0])
def test_evidence_is_the_ratio_of_likelihoods_of_t(n, t):
    """The likelihood of t, averaged over effects by their density, over that of no effect."""

    def weighed(effect):
        density = effect**2 / 0.25 * stats.norm.pdf(effect, scale=0.5)
        return density * stats.nct.pdf(t, n - 1, effect * math.sqrt(n)) / stats.t.pdf(t, n - 1)

    ratio = sum(integrate.quad(weighed, *ends, epsabs=1e-12)[0] for ends in ((-4, 0), (0, 4)))
    assert math.exp(log_evidence(t**2, n)) == pytest.approx(ratio, rel=1e-5)


def test_the_interval_ends_where_p_is_5_percent():
    sample = np.random.default_rng(0).normal(0.3, 1, 9)
    p, low, high = sequential_test(sample)
    assert (low + high) / 2 == pytest.approx(sample.mean())
    for end in (low, high):
        assert sequential_test(sample - end)[0] == pytest.approx(0.05)
    assert p == pytest.approx(min(1, 1 / math.exp(log_evidence(9 * sample.mean() ** 2 / sample.var(ddof=1), 9))))


def test_five_seeds_decide_nothing_but_differences_without_spread_do():
    assert sequential_test(np.array([1.0, 1.1, 0.9, 1.0, 1.05]))[1:] == (-math.inf, math.inf)
    assert sequential_test(np.full(6, 0.01))[0] == 2 / 2**6
    assert sequential_test(np.full(6, 1e-9), rounding=1e-8) == (1, 1e-9, 1e-9)


def looks(differences):
    """The seed at which each series is decided, 0 if never."""
    when = np.zeros(len(differences), dtype=int)
    for n in range(5, differences.shape[1] + 1):
        some = differences[:, :n]
        enough = log_evidence(n * some.mean(1) ** 2 / some.var(1, ddof=1), n) >= math.log(20)
        when[(when == 0) & enough] = n
    return when


def test_false_decisions_at_any_look_and_the_number_of_seeds():
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((4000, 100))
    assert (looks(noise) > 0).mean() < 0.05
    when = looks(1 + noise[:, :30])
    assert (when > 0).mean() > 0.985  # Student's test with 20 seeds: 98.9 %
    assert np.where(when > 0, when, 30).mean() < 0.65 * 20
    for effect in (1.0, 0.6):
        assert seeds_needed(effect) == pytest.approx(np.median(looks(effect + noise)), rel=0.15)
    assert seeds_needed(0.0) is None


@pytest.mark.parametrize("effect", [1.0, 0.5])
def test_a_range_of_seeds_is_right_in_four_of_five_cases(effect):
    spread = np.random.default_rng(0).standard_normal((1000, 10)).std(1, ddof=1)
    ranges = [seeds_stated(effect / part, 10) for part in spread]
    assert 0.75 <= np.mean([low <= seeds_needed(effect) <= (high or np.inf) for low, high in ranges]) <= 0.9
    assert len({*seeds_stated(effect, 30)}) == 1


def test_the_chance_of_a_decision_is_how_often_series_are_decided():
    # Effects of all sizes, as the posterior without a prior opinion takes them.
    generator = np.random.default_rng(1)
    series = generator.uniform(-3, 3, (900, 1)) + generator.standard_normal((900, 20))
    undecided = series[looks(series[:, :8]) == 0]
    foretold = np.array([chance_of_decision(some[:8], 20) for some in undecided])
    came = looks(undecided) > 0
    assert foretold.mean() == pytest.approx(came.mean(), abs=0.06)
    assert came[foretold < 0.05].mean() < 0.1 < 0.5 < came[foretold > 0.7].mean()


def test_differences_without_spread_are_not_futile():
    assert chance_of_decision(np.full(5, 0.01), 8) == 1
    assert chance_of_decision(np.zeros(5), 8) == 0


def test_seeds_are_added_until_that_has_an_end(tmp_path):
    names = {"gelu": "gelu", "sigmoid": "sigmoid"}
    options = {"seeds": 3, "until": "decided", "max_epochs": 2, "metric": "val_loss", "folder": tmp_path, **CPU}
    choice = choose(ConvNet, names, Stripes(), max_seeds=12, **options)
    (difference,) = choice.differences
    seeds = len(choice.seeds)
    assert difference.is_decided
    assert choice.notes[-1] == f"Ended after {seeds} seeds: all is decided."
    values = [candidate.values(choice.metric) for candidate in choice.candidates]
    assert sequential_test(np.subtract(*values))[0] == pytest.approx(difference.p)
    assert sequential_test(np.subtract(*values)[:-1])[0] >= 0.05
    with mock.patch.object(training, "train_together", side_effect=SystemExit("trained")):
        again = choose(ConvNet, names, Stripes(), max_seeds=12, **options)
    assert again.verdict == choice.verdict
    most = choose(ConvNet, names, Stripes(), max_seeds=seeds - 1, **options)
    assert f"Ended after {seeds - 1} seeds: that is the most" in most.notes[-1]
    assert any(line.startswith(f"{most.best.label} and ") and "needs about" in line for line in most.verdict)


def test_what_makes_no_difference_ends_early():
    names = {"gelu": "gelu", "tanh": "gelu(approximate='tanh')", "again": "gelu"}
    choice = choose(ConvNet, names, Stripes(), until="decided", max_epochs=1, metric="val_loss", max_seeds=9, **CPU)
    assert len(choice.seeds) < 9 or "the most" in choice.notes[-1]
    assert choice.difference("gelu", "again").equal


@pytest.mark.parametrize("changed", [{"until": "significant"}, {"max_seeds": 2}, {"max_seeds": "many"}])
def test_mistakes(changed):
    options = {"until": "decided", "seeds": 3, **changed}
    with pytest.raises(ArgumentError):
        choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
