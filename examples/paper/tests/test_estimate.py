"""How long the runs that are left will take, judged by those that were made."""

import pytest

from gelu_paper.estimate import Estimate
from gelu_paper.protocol.presets import preset


def test_nothing_is_estimated_before_the_first_run():
    assert Estimate(preset("quick")).rest([("mnist", 1.0)], workers=1) is None


def test_a_measured_experiment_counts_by_its_mean():
    estimate = Estimate(preset("quick"))
    estimate.add("mnist", 20.0)
    estimate.add("mnist", 40.0)
    assert estimate.rest([("mnist", 1.0), ("mnist", 0.5)], workers=2) == pytest.approx(1.5 * 30 / 2)


def test_others_are_scaled_from_what_was_expected():
    quick = preset("quick")
    estimate = Estimate(quick)
    estimate.add("mnist", 2 * quick["mnist"].seconds)  # twice as long as expected
    assert estimate.rest([("tweets", 1.0), ("tweets", 0.5)], workers=1) == 3 * quick["tweets"].seconds
