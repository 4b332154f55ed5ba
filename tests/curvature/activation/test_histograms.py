"""Histograms against numpy's."""

import numpy as np
import pytest
import torch

from lit_gelu.curvature import (
    ActivationRecorder,
    HistogramBins,
)
from lit_gelu.errors import ArgumentError


def test_counts_equal_numpys():
    x = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).double() * 3
    bins = HistogramBins(-4.0, 5.0, 9)
    counts = bins.count(x)
    for row, found in zip(x.numpy(), counts.tolist(), strict=True):
        inner, _ = np.histogram(row[row < 5], bins.edges)
        assert found == [(row < -4).sum(), *inner, (row >= 5).sum()]


def test_what_is_not_finite_is_in_no_bin():
    assert HistogramBins().count(torch.tensor([[np.nan, np.inf, -np.inf]])).sum() == 0


def test_the_recorder_adds_up_calls_of_sites():
    modules = {"a": torch.nn.GELU(), "b": torch.nn.GELU()}
    with ActivationRecorder(modules, None, histogram=HistogramBins(-1.0, 1.0, 2)) as recorder:
        recorder.start()
        modules["a"](torch.tensor([-0.5, 0.5]))
        modules["a"](torch.tensor([0.7, 3.0]))
        modules["b"](torch.tensor([-9.0]))
        assert recorder.evaluator.histograms(recorder.take()).tolist() == [[0, 1, 2, 1], [1, 0, 0, 0]]


def test_no_bins_are_refused():
    with pytest.raises(ArgumentError):
        HistogramBins(1.0, 1.0, 4)
