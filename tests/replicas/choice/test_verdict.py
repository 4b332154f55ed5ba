"""What is said of differences, decided and not."""

import pytest

from lit_gelu.replicas.choice.intervals import all_differences
from lit_gelu.replicas.choice.metric import Metric
from lit_gelu.replicas.choice.verdict import listed, sentences

ERROR, ACCURACY = Metric("val_error", "val", "min"), Metric("val_acc", "val", "max")
SPREAD = [0.0, 0.01, 0.02, 0.03, 0.04]


def shifted(amount, noise=0.001):
    return [amount + value + noise * (-1) ** place * place for place, value in enumerate(SPREAD)]


def said(values, metric=ERROR, seeds=5, baseline=None):
    medians = {label: sorted(numbers)[len(numbers) // 2] for label, numbers in values.items()}
    return " ".join(sentences(metric, medians, all_differences(values), seeds, baseline))


def test_better_than_all():
    text = said({"gelu": SPREAD, "relu": shifted(0.2)})
    assert text == (
        "gelu is better than relu: its val_error (median 0.02) is lower by more than the spread over 5 seeds."
    )


def test_better_than_some():
    text = said({"gelu": SPREAD, "silu": SPREAD[::-1], "relu": shifted(0.2)})
    assert text.startswith("gelu is better than relu: ")
    assert text.endswith("Between gelu and silu there is no such difference.")


def test_more_is_better():
    text = said({"gelu": shifted(0.2), "relu": SPREAD}, ACCURACY)
    assert "gelu is better than relu: its val_acc" in text
    assert "is higher by more than the spread" in text


def test_nothing_is_decided():
    text = said({"gelu": SPREAD, "silu": SPREAD[::-1], "relu": [0.04, 0.0, 0.03, 0.02, 0.01]})
    assert text == (
        "Nothing is decided: between gelu, silu and relu no difference of val_error is larger than the spread over 5 "
        "seeds."
    )


def test_the_same_numbers():
    text = said({"gelu": SPREAD, "again": SPREAD, "thrice": SPREAD, "relu": shifted(0.2)})
    assert text.startswith("gelu, again and thrice gave the same numbers with every seed: there is no difference")
    assert "gelu is better than relu" in text


def test_few_seeds():
    values = {"gelu": [0.1, 0.1], "relu": [0.5, 0.6]}
    assert said(values, seeds=2) == ("Nothing is decided: 2 seeds are too few for an interval. Train at least 5.")


def test_against_a_baseline():
    values = {
        "gelu": SPREAD,
        "silu": SPREAD[::-1],
        "relu": shifted(0.2),
        "elu": shifted(0.21, -0.002),
        "tanh": shifted(0.5),
    }
    assert said(values, baseline="relu").endswith(
        "Against the baseline relu: gelu and silu are better; tanh is worse; elu is no different beyond the spread."
    )
    assert "baseline" not in said(values, baseline="gelu")  # the best is compared with all others already


def test_a_difference_to_the_other_side_than_the_medians_is_not_said_of_the_best():
    # The mean of the differences is far on the other side of the medians' in one seed only: that is spread.
    values = {"a": [0.1, 0.1, 0.1, 5.0, 9.0], "b": [0.2, 0.2, 0.2, 0.2, 0.2]}
    assert said(values).startswith("Nothing is decided")


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_listed(words, text):
    assert listed(words) == text
