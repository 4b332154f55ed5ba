"""Selection and medians, against numbers by hand and Python's statistics."""

import math
import statistics
from collections import defaultdict

import pytest

from gelu_paper.experiments import EXPERIMENTS
from gelu_paper.results import choices, curve_values, median_curve
from lit_gelu.errors import DataError

MNIST, AUTOENCODER = EXPERIMENTS["mnist"], EXPERIMENTS["autoencoder"]


def test_the_evaluation_with_the_lowest_validation_error_counts_the_first_of_equal_ones(record_of):
    (choice,) = choices(MNIST, [record_of(val_error=[0.3, 0.1, 0.1], test_error=[0.35, 0.25, 0.05])])
    assert (choice.validation.tolist(), choice.test.tolist()) == ([0.1], [0.25])


def test_the_learning_rate_with_the_lowest_median_over_seeds_is_chosen(record_of):
    validation = {1e-3: [0.1, 0.3, 0.5], 1e-4: [0.2, 0.25, 0.9], 1e-5: [0.05, 0.4, 0.4]}
    runs = [
        record_of(seed, rate=rate, val_error=[value], test_error=[value + rate])
        for rate, values in validation.items()
        for seed, value in enumerate(values)
    ]
    (choice,) = choices(MNIST, runs)
    assert choice.learning_rate == 1e-4
    assert choice.test.tolist() == [value + 1e-4 for value in validation[1e-4]]
    assert choice.is_tuned


def test_the_test_set_chooses_nothing(record_of):
    def chosen(errors):
        runs = [
            record_of(rate=rate, val_error=[rate], test_error=[error])
            for rate, error in zip((1e-3, 1e-4), errors, strict=True)
        ]
        return choices(MNIST, runs)[0].learning_rate

    assert chosen((0.1, 0.9)) == chosen((0.9, 0.1)) == 1e-4


def test_of_a_tie_the_largest_learning_rate_is_chosen_with_a_remark(record_of):
    runs = [record_of(rate=rate, val_error=[0.1], test_error=[0.2]) for rate in (1e-5, 1e-3, 1e-4)]
    (choice,) = choices(MNIST, runs)
    assert choice.learning_rate == 1e-3
    assert any("tie" in remark for remark in choice.remarks)


def test_a_run_that_diverged_is_worse_than_any_other_and_never_left_out(record_of):
    good = [record_of(seed, rate=1e-4, val_error=[0.5], test_error=[0.5]) for seed in range(3)]
    bad = [record_of(0, val_error=[0.1], test_error=[0.1])]
    bad += [record_of(seed, val_error=[0.1], test_error=[0.1], status="diverged") for seed in (1, 2)]
    (choice,) = choices(MNIST, [*good, *bad])
    assert choice.learning_rate == 1e-4
    (choice,) = choices(MNIST, bad)
    assert (choice.diverged, choice.test.tolist()) == (2, [0.1, math.inf, math.inf])
    assert math.isinf(choice.test.median())


def test_settings_that_are_not_tuned_are_reported_separately_in_the_experiments_order(record_of):
    runs = [
        record_of(arm=arm, keep=keep, val_error=[0.1], test_error=[0.2])
        for arm in ("relu", "gelu", "mine")
        for keep in (0.5, 1.0)
    ]
    order = [(choice.setting["keep"], choice.arm) for choice in choices(MNIST, runs)]
    assert order == [(1.0, "gelu"), (1.0, "relu"), (1.0, "mine"), (0.5, "gelu"), (0.5, "relu"), (0.5, "mine")]


def test_without_selection_every_learning_rate_is_reported_by_the_last_evaluation(record_of):
    runs = [record_of(experiment="autoencoder", keep=None, rate=rate, test_loss=[0.1, rate]) for rate in (1e-4, 1e-3)]
    results = choices(AUTOENCODER, runs)
    assert [(choice.learning_rate, choice.test.tolist()) for choice in results] == [(1e-3, [1e-3]), (1e-4, [1e-4])]
    assert results[0].validation is None


def test_dropout_is_tuned_with_the_learning_rate_where_the_experiment_says_so(record_of):
    runs = [
        record_of(
            experiment="mnist_zero_identity", arm="relu", keep=keep, rate=rate, val_error=[keep + rate], test_error=[1]
        )
        for keep in (1.0, 0.75, 0.5)
        for rate in (1e-3, 1e-4)
    ]
    (choice,) = choices(EXPERIMENTS["mnist_zero_identity"], runs)
    assert (choice.setting["keep"], choice.learning_rate) == (0.5, 1e-4)


def test_what_is_missing_is_a_remark(record_of):
    runs = [record_of(seed, val_error=[0.1], test_error=[0.1]) for seed in range(2)]
    (choice,) = choices(MNIST, runs)
    assert "learning rate 0.001, keep 1: 2 of 5 seeds" in choice.remarks
    assert "not run at learning rate 0.0001, 1e-05" in choice.remarks


@pytest.mark.parametrize("curves", [{"test_error": [0.1]}, {"val_error": [0.1]}, {}], ids=str)
def test_runs_without_what_their_experiment_reports_are_refused_or_reported_without(record_of, curves):
    if "val_error" in curves:
        (choice,) = choices(MNIST, [record_of(**curves)])
        assert choice.test is None
    else:
        with pytest.raises(DataError):
            choices(MNIST, [record_of(**curves)])


def test_median_curves_are_those_of_python(record_of):
    values = [[3, 1, 2], [9, 2, 2], [4, 8, 1], [5, 5, 5]]
    curve = median_curve([record_of(seed, train_loss=row) for seed, row in enumerate(values)], "train_loss")
    columns = list(zip(*values, strict=True))
    assert curve["median"].tolist() == [statistics.median(column) for column in columns]
    assert (curve["low"].tolist(), curve["high"].tolist()) == ([min(c) for c in columns], [max(c) for c in columns])
    assert curve.index.tolist() == [1.0, 2.0, 3.0]


def test_a_curve_that_diverged_counts_as_infinite_behind_its_end(record_of):
    runs = [record_of(0, train_loss=[1, 1]), record_of(1, train_loss=[3], status="diverged")]
    assert median_curve(runs, "train_loss")["median"].tolist() == [2.0, math.inf]
    assert curve_values(runs, "train_loss", 2.0).tolist() == [1.0, math.inf]
    assert curve_values(runs, "train_loss", 3.0) is None


def test_curves_of_other_epochs_have_no_median(record_of):
    with pytest.raises(DataError):
        median_curve([record_of(0, train_loss=[1, 1]), record_of(1, train_loss=[1])], "train_loss")
    assert median_curve([record_of(0)], "train_loss") is None


def test_of_the_kept_runs_what_the_rule_chooses_by_hand(kept):
    """The rule once more, in plain Python, for every arm of MNIST and of the tweets."""
    for name in ("mnist", "tweets", "mnist_zero_identity", "tweets_zero_identity", "phi_quality"):
        for choice in choices(EXPERIMENTS[name], kept):
            lowest = defaultdict(list)
            for run in kept:
                is_same = (run.experiment, run.arm) == (name, choice.arm)
                fixed = name.endswith("zero_identity") or run.setting == choice.setting
                if is_same and fixed:
                    lowest[run.learning_rate, str(run.setting)].append(min(run.curves["val_error"].value))
            best = min(map(statistics.median, lowest.values()))
            assert choice.validation.median() == best
            for run, test in zip(choice.runs, choice.test, strict=True):
                place = run.curves["val_error"].value.index(min(run.curves["val_error"].value))
                assert test == run.curves["test_error"].value[place]
