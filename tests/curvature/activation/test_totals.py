"""Sums and counts by site, against numpy in float64."""

import numpy as np
import pytest
import torch

from lit_gelu.curvature.activation.statistics import count, narrow_total, total


def test_sums_of_float32_are_accumulated_in_float64():
    x = torch.randn(3, 1000, 7, generator=torch.Generator().manual_seed(0)) + 1e4
    expected = x.numpy().astype(np.float64).sum((1, 2))
    assert total(x).dtype == torch.float64
    assert total(x).numpy() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("x", [torch.rand(2, 2**20), torch.randn(2, 8192) + 5, torch.rand(1, 3, 11)])
def test_narrow_sums_are_right_to_what_float32_can_tell(x):
    """Added one after the other, a million numbers would be wrong in the fourth digit."""
    expected = x.numpy().astype(np.float64).reshape(len(x), -1).sum(1)
    assert narrow_total(x).dtype == torch.float32
    assert narrow_total(x).numpy() == pytest.approx(expected, rel=5e-7)


@pytest.mark.parametrize("elements", [10, 2**24, 2**24 + 3])
def test_counts_are_exact_beyond_what_float32_counts(elements):
    """One more than 2^24 is no float32."""
    ones = torch.ones(1, elements)
    assert count(ones).item() == elements
