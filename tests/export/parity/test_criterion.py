"""The floors and limits: derived from rounding, held against numbers that were rounded."""

import numpy as np
import pytest
import torch

from lit_gelu.export.parity.criterion import (
    UNIT_ROUNDOFF,
    dtype_name,
    dtype_of,
    floor,
    limit,
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
