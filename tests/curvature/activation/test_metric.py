"""The metric: sums over batches and ranks, as float64 numbers of one tensor."""

import pickle

import pytest
import torch
from scipy import stats
from torch import nn

from lit_gelu.curvature import ActivationStatistics, activation_statistics
from lit_gelu.curvature.activation.statistics import SUMS
from lit_gelu.errors import ArgumentError


def test_batches_add_up_to_the_whole():
    x = torch.randn(5, 40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    metric = ActivationStatistics({"a": "silu", "b": nn.GELU()})
    for batch in x:
        metric.update({"a": batch, "b": 2 * batch})
    assert metric.compute()["a"] == pytest.approx(activation_statistics("silu", x), rel=1e-9)
    assert metric.compute()["b"] == pytest.approx(activation_statistics("gelu", 2 * x), rel=1e-9)
    assert metric.compute()["a"]["excess_kurtosis"] == pytest.approx(stats.kurtosis(x.flatten()), rel=1e-6)


def test_one_state_reduced_by_a_sum():
    metric = ActivationStatistics({"a": "gelu", "b": "relu"})
    assert list(metric.metric_state) == ["sums"]
    assert metric.sums.shape == (2, len(SUMS))
    assert metric._reductions["sums"](torch.ones(3, 2, 5)).shape == (2, 5)


def test_half_does_not_reach_the_sums():
    metric = ActivationStatistics({"a": "gelu"}).half()
    metric.update({"a": torch.randn(8).half()})
    assert metric.sums.dtype == torch.float64


def test_reset_pickle_and_unknown_names():
    metric = ActivationStatistics({"a": "gelu"})
    metric.update({"a": torch.ones(3)})
    again = pickle.loads(pickle.dumps(metric))
    assert again.compute()["a"]["mean"] == 1
    metric.reset()
    assert metric.sums.count_nonzero() == 0
    with pytest.raises(ArgumentError):
        metric.update({"b": torch.ones(3)})
