"""What is said of differences, decided and not."""

import statistics

import pytest
from scipy import stats

from lit_gelu.choose.intervals import all_differences
from lit_gelu.choose.metric import Metric
from lit_gelu.choose.verdict import listed, sentences

ERROR, ACCURACY = Metric("val_error", "val", "min"), Metric("val_acc", "val", "max")
SPREAD = [0.0, 0.01, 0.02, 0.03, 0.04]
NEAR = [0.01, 0.025, 0.025, 0.045, 0.046]  # each is more


def shifted(amount, noise=0.001):
    return [amount + value + noise * (-1) ** place * place for place, value in enumerate(SPREAD)]


def said(values, metric=ERROR, seeds=5, baseline=None):
    medians = {label: sorted(numbers)[len(numbers) // 2] for label, numbers in values.items()}
    return " ".join(sentences(metric, medians, all_differences(values), seeds, baseline))


def test_better_than_all():
    assert said({"gelu": SPREAD, "relu": NEAR}) == (
        "gelu is better than relu: its val_error (median 0.02) is lower. This is decided: the 95 % interval excludes "
        f"0, and the test over 5 seeds agrees (p = {stats.ttest_rel(SPREAD, NEAR).pvalue:.3g})."
    )
    assert said({"gelu": SPREAD, "relu": shifted(0.2)}).endswith(" agrees (p < 0.0001).")


def test_better_than_some():
    text = said({"gelu": SPREAD, "silu": SPREAD[::-1], "relu": shifted(0.2)})
    assert text.startswith("gelu is better than relu: ")
    assert " agrees (p < 0.0001, corrected for 3 pairs). Not decided " in text
    assert text.endswith(
        "Not decided between gelu and silu: the 95 % interval includes 0 (p = 1). "
        "Of the others, silu is better than relu (p = 0.000327)."
    )


def test_more_is_better():
    text = said({"gelu": shifted(0.2), "relu": SPREAD}, ACCURACY)
    assert text.startswith("gelu is better than relu: its val_acc (median 0.222) is higher. This is decided: ")


def test_nothing_is_decided():
    text = said({"gelu": SPREAD, "silu": SPREAD[::-1], "relu": [0.04, 0.0, 0.03, 0.02, 0.01]})
    assert text == (
        "Nothing is decided between gelu, silu and relu: for each pair the 95 % interval includes 0, or the test over "
        "5 seeds does not agree (the smallest p is 1, corrected for 3 pairs)."
    )


def test_an_interval_without_0_is_not_enough():
    """Five differences that are one number are tested by their signs."""
    constant = {"gelu": SPREAD, "relu": [value + 0.01 for value in SPREAD]}
    assert said(constant) == (
        "Nothing is decided between gelu and relu: the 95 % interval excludes 0, but the test over 5 seeds does not "
        "agree (p = 0.0625)."
    )
    text = said({**constant, "silu": SPREAD[::-1], "tanh": shifted(0.5, 0.002)})
    assert "Not decided between gelu and relu: the 95 % interval excludes 0, but the test over 5 seeds does not" in text
    assert "Not decided between gelu and silu: the 95 % interval includes 0 (p = 1)." in text


def test_the_same_numbers_with_every_seed():
    assert said({"gelu": SPREAD, "again": SPREAD}, baseline="again") == (
        "gelu and again gave the same numbers with every seed: there is no difference between them."
    )


def test_the_same_numbers():
    text = said({"gelu": SPREAD, "again": SPREAD, "thrice": SPREAD, "relu": shifted(0.2)})
    assert text.startswith("gelu, again and thrice gave the same numbers with every seed: there is no difference")
    assert "gelu is better than relu" in text
    assert "ot decided" not in text


def test_few_seeds():
    values = {"gelu": [0.1, 0.1], "relu": [0.5, 0.6]}
    assert said(values, seeds=2) == ("Nothing is decided: 2 seeds are too few for an interval. Train at least 5.")


def test_against_a_baseline():
    values = {
        "gelu": SPREAD,
        "silu": SPREAD[::-1],
        "relu": shifted(0.2),
        "elu": shifted(0.21, -0.002),
        "tanh": shifted(0.5, 0.002),  # from relu not by one number with every seed
    }
    assert said(values, baseline="relu").endswith(
        "Against the baseline relu: gelu and silu are better (p < 0.0001 and p = 0.000491); tanh is worse (p < "
        "0.0001); elu is not decided (p = 0.144)."
    )
    assert "baseline" not in said(values, baseline="gelu")  # the best is compared with all others already


def test_a_difference_to_the_other_side_than_the_medians_is_not_said_of_the_best():
    # The mean of the differences is far on the other side of the medians' in one seed only: that is spread.
    values = {"a": [0.1, 0.1, 0.1, 5.0, 9.0], "b": [0.2, 0.2, 0.2, 0.2, 0.2]}
    assert said(values).startswith("Nothing is decided")


B_TO_C = {
    "A": [0.08, 0.09, 0.10, 0.20, 0.30],
    "B": [0.11, 0.12, 0.11, 0.13, 0.12],
    "C": [0.14, 0.15, 0.142, 0.161, 0.149],
}


def test_what_is_decided_between_others_than_the_best():
    chances = {pair: stats.ttest_rel(B_TO_C[pair[0]], B_TO_C[pair[1]]).pvalue for pair in ("AB", "AC", "BC")}
    assert [pair for pair, p in chances.items() if p < 0.05] == ["BC"]
    assert 3 * chances["BC"] < 0.05  # Holm's, of three pairs
    assert said(B_TO_C) == (
        "Not decided between A and each of B and C: the 95 % interval includes 0 (p = 0.847 and p = 0.897, corrected "
        "for 3 pairs). Of the others, B is better than C (p < 0.0001)."
    )
    assert said(B_TO_C, baseline="B").endswith("C is worse (p < 0.0001); A is not decided (p = 0.847).")


def test_of_more_candidates_each_decided_pair_is_said_once():
    values = {"gelu": SPREAD, "silu": SPREAD[::-1], "relu": shifted(0.2), "tanh": shifted(0.5, 0.002)}
    assert said(values) == (
        "gelu is better than relu and tanh: its val_error (median 0.02) is lower. This is decided: the 95 % interval "
        "excludes 0, and the test over 5 seeds agrees (p < 0.0001, corrected for 6 pairs). Not decided between gelu "
        "and silu: the 95 % interval includes 0 (p = 1). Of the others, silu is better than relu and tanh (p = "
        "0.000327 and p < 0.0001); relu is better than tanh (p < 0.0001)."
    )


@pytest.mark.parametrize(("metric", "more", "sign"), [(ERROR, "lower", 1), (ACCURACY, "higher", -1)])
def test_the_best_median_may_be_worse_in_the_mean(metric, more, sign):
    base, apart = [-5.0, -5.0, 0.0, 5.0, 5.0], [1.0, 1.1, -0.05, 0.9, 1.0]
    values = {"a": [sign * (b + d) for b, d in zip(base, apart, strict=True)], "b": [sign * b for b in base]}
    assert stats.ttest_rel(values["a"], values["b"]).pvalue < 0.05
    medians = {label: statistics.median(numbers) for label, numbers in values.items()}
    assert metric.badness(medians["a"]) < metric.badness(medians["b"])
    assert said(values, metric) == (
        f"b is better than a, though a has the best median: in the mean over the seeds {metric.name} is {more}. This "
        "is decided: the 95 % interval excludes 0, and the test over 5 seeds agrees "
        f"(p = {stats.ttest_rel(values['a'], values['b']).pvalue:.3g})."
    )


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_listed(words, text):
    assert listed(words) == text
