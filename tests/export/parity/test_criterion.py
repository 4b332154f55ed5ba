"""The floors and limits: derived from rounding, held against numbers that were rounded."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from lit_gelu.export import ExportOptionError
from lit_gelu.export.parity.criterion import (
    ROOT_MEAN_SQUARES,
    UNIT_ROUNDOFF,
    dtype_name,
    dtype_of,
    floor,
    in_limits,
    limit,
    require_tolerance,
    smallest_error,
    smallest_error_of_an_index,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_unit_roundoff_is_half_of_torchs_epsilon(dtype):
    assert UNIT_ROUNDOFF[dtype] == torch.finfo(dtype).eps / 2


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_never_counted_lies_below_the_normal_numbers(dtype):
    info = torch.finfo(dtype)
    step = info.smallest_normal * info.eps
    assert smallest_error(dtype) == (step if dtype == torch.float16 else info.smallest_normal)


def test_names_of_dtypes():
    assert [dtype_of(name) for name in ("fp32", "fp16", "torch.bfloat16", "int8")] == [*DTYPES, torch.float32]


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
    assert smallest_error_of_an_index(largest, dtype) == error


def test_dtypes_are_named_without_the_library():
    assert [dtype_name(dtype) for dtype in (torch.float32, torch.bfloat16)] == ["float32", "bfloat16"]


@pytest.mark.parametrize(("dtype", "noise"), list(zip(DTYPES, [2.0, 1.0, 1.0], strict=True)))
def test_one_normal_error_in_16_000_is_beyond_the_root_mean_squares_of_an_index(dtype, noise):
    """In float32 of twice the noise: a plain loop of additions beside a blocked one."""
    assert 1 / (2 * norm.sf(ROOT_MEAN_SQUARES[dtype] / noise)) == pytest.approx(16_000, rel=0.02)


def test_where_nothing_is_tolerated_any_error_is_infinitely_too_large():
    assert in_limits(3e-5, 1e-5) == pytest.approx(3.0)
    assert in_limits(0.0, 0.0) == in_limits(0.0, 1e-5) == 0.0
    assert in_limits(5e-324, 0.0) == float("inf")


@pytest.mark.parametrize("tolerance", [0, 0.0, 1e-9, 0.5, 1, 1e9, np.float32(1e-3)])
def test_a_tolerance_is_a_finite_number_from_0(tolerance):
    require_tolerance(tolerance)


@pytest.mark.parametrize("tolerance", [-1e-9, -1, float("inf"), float("nan"), True, False, None, "1e-5", [1e-5], 1j])
def test_all_else_is_no_tolerance(tolerance):
    with pytest.raises(ExportOptionError, match=r"is not accepted\. Give a finite number from 0"):
        require_tolerance(tolerance)
