"""Whole tables against runs made by hand, one by one: MNIST, and a convolutional net of one's own."""

import statistics
import warnings

import numpy as np
import pytest
from choice_nets import CPU, ConvNet, Stripes, by_hand
from scipy import stats

from lit_gelu.choose import choose
from lit_gelu.choose.intervals import tail_of_percentiles
from lit_gelu.data import MNISTData
from lit_gelu.tasks import MNISTClassifier

pytestmark = [pytest.mark.full, pytest.mark.timeout(7200)]
SEEDS = 5


@pytest.mark.parametrize(
    ("build", "data", "metric", "epochs"),
    [
        pytest.param(MNISTClassifier, MNISTData, "val_error", 3, marks=pytest.mark.realdata, id="mnist"),
        pytest.param(ConvNet, lambda: Stripes(noise=0.7), "val_acc", 3, id="own"),
    ],
)
def test_the_table_is_that_of_runs_made_by_hand(build, data, metric, epochs):
    warnings.filterwarnings("ignore", message=".*(num_workers|LeafSpec|number of training batches)")
    names = ["gelu", "silu", "relu", "sigmoid"]
    choice = choose(build, names, data(), seeds=SEEDS, max_epochs=epochs, metric=metric, trainer=CPU, measure=False)
    assert choice.trained == "Trained side by side, as a group."
    values = {
        name: [by_hand(build, name, seed, data(), epochs, **CPU).logged[metric] for seed in range(SEEDS)]
        for name in names
    }
    assert {c.label: c.values(choice.metric) for c in choice.candidates} == values
    for candidate, row in zip(choice.candidates, choice.rows, strict=True):
        own = values[candidate.label]
        assert row[1:4] == [f"{value:.4g}" for value in (statistics.median(own), min(own), max(own))]
    worst = choice.candidates[-1].label
    found = choice.difference(worst, choice.best.label)
    apart = np.subtract(values[worst], values[choice.best.label])
    level = 1 - 2 * tail_of_percentiles(SEEDS, 0.95)
    wanted = stats.bootstrap(
        (apart,), np.mean, method="percentile", confidence_level=level, n_resamples=100_000, batch=10_000, rng=0
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=0.1 * np.std(apart))
    smallest = stats.ttest_1samp(apart, 0).pvalue
    assert smallest <= found.p <= min(1, 6 * smallest) + 1e-12  # Holm's, of six pairs
