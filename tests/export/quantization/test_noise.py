"""Signal-to-quantisation-noise ratio, against numpy."""

import math

import numpy as np
import pytest

from lit_gelu.export.quantization.noise import Noise, decibels


def test_the_ratio_over_several_batches_is_that_of_all_of_them():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(100, 5)).astype(np.float32)
    found = y + 0.01 * rng.normal(size=y.shape).astype(np.float32)
    noise = Noise()
    for rows in np.split(np.arange(100), [7, 40]):
        noise.add(found[rows], y[rows])
    error = found.astype(np.float64) - y
    assert noise.sqnr == pytest.approx(20 * np.log10(np.linalg.norm(y) / np.linalg.norm(error)), rel=1e-6)
    assert noise.relative_rms == pytest.approx(np.linalg.norm(error) / np.linalg.norm(y), rel=1e-6)
    assert noise.top1_agreement == np.mean(found.argmax(1) == y.argmax(1))
    assert noise.difference == pytest.approx(1 - noise.top1_agreement)


def test_rounding_to_8_bits_gives_6_decibels_a_bit():
    """A sine that fills the range: 6.02 bits + 1.76 dB (any textbook on signals)."""
    y = np.sin(np.linspace(0, 2000 * np.pi, 200_001))
    step = 2 / 255
    noise = Noise()
    noise.add(np.round(y / step) * step, y)
    assert noise.sqnr == pytest.approx(6.02 * 8 + 1.76, abs=0.1)


def test_what_is_not_finite_counts_and_is_never_good():
    noise = Noise()
    noise.add(np.array([[np.nan, 1.0]]), np.array([[1.0, 1.0]]))
    assert noise.differences.nonfinite == 1
    assert noise.difference == math.inf


def test_the_ends():
    assert decibels(0.0, 0.0) == math.inf
    assert decibels(0.0, 1.0) == -math.inf
    other = Noise()
    other.add(np.zeros((2, 3)), np.ones((2, 4)))
    assert other.sqnr == -math.inf
    plain = Noise()
    plain.add(np.ones((4, 1)), np.ones((4, 1)))
    assert (plain.top1_agreement, plain.difference, plain.sqnr) == (None, 0.0, math.inf)
