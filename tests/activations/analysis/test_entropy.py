"""Entropy of rounded inputs and outputs, against counts known from elsewhere and against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from lit_gelu.activations import ActivationArgumentError
from lit_gelu.activations.analysis.information import quantised_entropy


@pytest.mark.parametrize(
    ("name", "step", "distinct"),
    [("silu", 1e-6, 992), ("gelu", 1e-6, 991), ("silu", 1e-3, 279), ("gelu", 1e-3, 171), ("leaky_relu", 1e-3, 21)],
)
def test_a_thousand_points_between_minus_two_and_zero(name, step, distinct):
    """A published experiment counts the distinct rounded outputs of 1000 points."""
    found = quantised_entropy(name, step, (-2, 0), input_step=2 / 999)
    assert (found.distinct_inputs, found.distinct_outputs) == (1000, distinct)
    assert found.input_bits == pytest.approx(math.log2(1000), rel=1e-14)


def test_the_identity_loses_nothing():
    found = quantised_entropy("identity", 2**-6)
    assert found.lost_bits == pytest.approx(0.0, abs=1e-12)
    assert found.distinct_inputs == found.distinct_outputs


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 2.5), (-3.0, 0.2)])
def test_a_fine_grid_gives_the_differential_entropy(mean, std):
    step = 2**-8
    found = quantised_entropy("identity", step, mean=mean, std=std)
    differential = math.log2(std * math.sqrt(2 * math.pi * math.e))
    # Rounding adds step^2 / 12 to the variance.
    assert found.input_bits == pytest.approx(differential + 8 + (step / std) ** 2 / 24 / math.log(2), abs=1e-8)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.5, 0.8)])
def test_relu_loses_what_was_known_of_its_negative_inputs(mean, std):
    step = 2**-6
    k = np.arange(-64 * 20, 64 * 20 + 1)
    normal = stats.norm(mean, std)
    probabilities = np.diff(normal.cdf((np.append(k, k[-1] + 1) - 0.5) * step))
    negative = probabilities[k <= 0]
    lost = negative.sum() * stats.entropy(negative, base=2)
    found = quantised_entropy("relu", step, mean=mean, std=std)
    assert found.lost_bits == pytest.approx(lost, abs=1e-10)
    assert found.input_bits == pytest.approx(stats.entropy(probabilities, base=2), abs=1e-10)


def test_a_saturating_activation_loses_more_when_the_grid_is_coarse():
    fine, coarse = (quantised_entropy("tanh", step, (-6, 6), input_step=2**-10).lost_bits for step in (2**-16, 2**-4))
    assert 0 < fine < coarse


def test_nothing_is_gained():
    for name in ("gelu", "mish", "elu", "sigmoid", "hard_swish"):
        assert quantised_entropy(name, 2**-8).lost_bits >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": 0.0}, "must be positive"),
        ({"step": 0.1, "std": -1.0}, "must be positive"),
        ({"step": 0.1, "mean": math.nan}, "finite"),
        ({"step": 1e-9}, "Choose a larger input_step"),
        ({"step": 0.1, "interval": (1, 0)}, "from left to right"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(ActivationArgumentError, match=message):
        quantised_entropy("gelu", **arguments)
