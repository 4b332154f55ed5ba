"""Floors, limits, units in the last place and fills: derived from rounding, held against numbers that were rounded."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from lit_gelu.errors import ArgumentError
from lit_gelu.export.parity.criterion import (
    UNIT_ROUNDOFF,
    distance,
    explained_by_chance,
    fills,
    floor,
    limit,
    limits_of_indices,
    overflowed,
    require_tolerance,
    spacing,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_rounding_is_within_the_floor_and_two_roundings_of_16_bit_are_not(dtype):
    exact = torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    rounded = exact.to(dtype).double()
    error = float(((rounded - exact).abs() / exact).max())
    assert 0.4 * torch.finfo(dtype).eps < error <= UNIT_ROUNDOFF[dtype] <= floor(dtype)
    if dtype != torch.float32:
        off_by_one = torch.from_numpy(np.nextafter(exact.numpy(), np.inf)).to(dtype)
        wrong = (off_by_one * (1 + torch.finfo(dtype).eps)).double()
        assert float(((wrong - exact).abs() / exact).max()) > floor(dtype)


def test_the_limit_is_the_issues():
    assert limit(None, torch.float32) == 1e-5
    assert limit(4e-6, torch.float32) == 1e-5
    assert limit(3e-5, torch.float32) == 6e-5
    assert limit(1e-9, torch.float32, tolerance=1e-7) == 1e-7
    assert limit(float("inf"), torch.float32) == limit(float("nan"), torch.float32) == 1e-5  # it must not allow all


@pytest.mark.parametrize("rows", [1, 2, 32, 5000])
@pytest.mark.parametrize(("positions", "share"), [(4096, 5e-4), (300_000, 1e-5), (3, 1e-5), (64, 4e-3), (10, 0.6)])
def test_more_rows_than_chance_explains_are_rarer_than_one_in_a_thousand(rows, positions, share):
    allowed = explained_by_chance(rows, positions, share)
    assert 1 <= allowed <= rows
    assert positions * binom.sf(allowed, rows, share) <= 1e-3  # more than allowed
    assert allowed <= 1 + binom.ppf(1 - 1e-6 / positions, rows, min(1.0, np.e * share))  # and not many more than that


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@given(exact=st.floats(-70000, 70000), steps=st.integers(0, 3))
def test_a_rounded_value_is_off_by_at_most_a_half_and_its_neighbours_by_one_more(dtype, exact, steps):
    exact = float(overflowed(np.array(exact), dtype))
    value = torch.tensor(exact, dtype=torch.float64).to(dtype)
    near = value
    for _ in range(steps):
        near = torch.nextafter(near, torch.tensor(0.0, dtype=dtype))
    error = distance(near.double().numpy(), np.array(exact)) / (
        1.0 if math.isinf(exact) else spacing(np.array(exact), dtype)
    )
    if math.isinf(exact):
        assert error == (0 if steps == 0 else math.inf)
    elif steps == 0:
        assert error <= 0.5
    else:
        assert error <= steps + 0.5
        assert near == 0 or error >= (steps - 1) / 2  # towards zero the steps may halve


LOWEST = np.finfo(np.float32).min


def filled(output, baseline, exact):
    return fills(
        np.float32(output), None if baseline is None else np.float32(baseline), np.float64(exact), torch.float32
    ).tolist()


def test_a_fill_is_what_file_pytorch_and_float64_hold_beyond_all_else():
    assert filled([[-1e9, 1.5, 2.5]], [[-1e9, 1.5, 2.5]], [[-1e9, 1.5000001, 2.5000001]]) == [[True, False, False]]
    assert filled([[-1e9, 1.5]], None, [[-1e9, 1.5000001]]) == [[True, False]]
    assert filled([[-1e9, -1e9]], [[-1e9, -1e9]], [[-1e9, -1e9]]) == [[True, True]]
    assert filled([[1.0, 1e-8]], [[1.0, 1e-8]], [[1.0, 1.1e-8]]) == [[False, False]]  # what saturates is no fill
    assert filled([[4096, 900]], [[4096, 900]], [[4096, 900.0001]]) == [[False, False]]
    for y, baseline, exact in ((-1e9, -1e8, -1e9), (-1e8, -1e9, -1e9), (-1e8, -1e8, -1e9), (np.nan, np.nan, np.nan)):
        assert filled([[y]], [[baseline]], [[exact]]) == [[False]]


def test_a_fill_of_the_dtype_is_one_where_the_file_has_it_as_pytorch_has():
    lowest64 = np.finfo(np.float64).min
    assert filled([[LOWEST, 1]], [[LOWEST, 1]], [[lowest64, 1]]) == [[True, False]]
    for y, baseline in ((-np.inf, LOWEST), (np.nan, LOWEST), (1, LOWEST), (LOWEST, -np.inf), (LOWEST, None)):
        assert filled([[y]], None if baseline is None else [[baseline]], [[lowest64]]) == [[False]]


def limit_of_one_index(scale, error=0.0, square=0.0, largest=0.0, dtype=torch.float32):
    (allowed,) = limits_of_indices(np.array([scale]), np.array([error]), np.array([square]), largest, dtype, 1e-5)
    return allowed


@pytest.mark.parametrize(
    ("largest", "dtype", "error"),
    [
        (1e4, torch.float32, 2.0**-22),
        (1.0, torch.float32, 2.0**-22),
        (0.25, torch.bfloat16, 2.0**-24),
        (0.0, torch.float32, 2.0**-126),
        (2.0**-10, torch.float16, 2.0**-24),
    ],
)
def test_what_an_index_may_be_off_follows_the_largest_value_up_to_one(largest, dtype, error):
    assert limit_of_one_index(0.0, largest=largest, dtype=dtype) == error


def test_an_index_may_be_off_by_its_floor_or_twice_what_pytorch_is_off_by():
    assert limit_of_one_index(2.0) == 2e-5
    assert limit_of_one_index(1.0, error=1e-3) == 2e-3
    assert limit_of_one_index(1.0, error=1e-3, square=1e-6) == pytest.approx(2 * 8 * 1e-3)
    assert limit_of_one_index(1.0, error=1e-3, square=1e-6, dtype=torch.float16) == pytest.approx(2 * 4 * 1e-3)


@pytest.mark.parametrize("tolerance", [-1e-9, float("inf"), float("nan"), True, None, "1e-5"])
def test_what_no_error_can_be_compared_with_is_no_tolerance(tolerance):
    with pytest.raises(ArgumentError):
        require_tolerance(tolerance)
