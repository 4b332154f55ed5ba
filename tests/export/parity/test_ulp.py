"""Units in the last place, against numpy's own spacing and a count by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_gelu.export.parity.alone.elementwise import all_values, special_values, strided_values, sweep_values
from lit_gelu.export.parity.ulp import EDGES, histogram, overflowed, spacing, ulp_errors


@pytest.mark.parametrize(("dtype", "array"), [(torch.float32, np.float32), (torch.float16, np.float16)])
def test_the_spacing_is_numpys(dtype, array):
    values = sweep_values(dtype).numpy()
    values = values[np.abs(values) < np.finfo(array).max / 2]
    expected = np.spacing(np.abs(values)).astype(np.float64)
    np.testing.assert_array_equal(spacing(values.astype(np.float64), dtype), expected)


def test_the_spacing_of_bfloat16_is_the_distance_to_the_next_pattern():
    bits = torch.arange(0, 0x7F00, dtype=torch.int16)
    values, following = (b.view(torch.bfloat16).double().numpy() for b in (bits, bits + 1))
    np.testing.assert_array_equal(spacing(values, torch.bfloat16), following - values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@given(exact=st.floats(-70000, 70000), steps=st.integers(0, 3))
def test_a_rounded_value_is_off_by_at_most_a_half_and_its_neighbours_by_one_more(dtype, exact, steps):
    exact = float(overflowed(np.array(exact), dtype))
    value = torch.tensor(exact, dtype=torch.float64).to(dtype)
    near = value
    for _ in range(steps):
        near = torch.nextafter(near, torch.tensor(0.0, dtype=dtype))
    (error,) = ulp_errors(near.double().reshape(1).numpy(), np.array([exact]), dtype)
    if math.isinf(exact):
        assert error == (0 if steps == 0 else math.inf)
    elif steps == 0:
        assert error <= 0.5
    else:
        assert error <= steps + 0.5
        assert near == 0 or error >= (steps - 1) / 2  # towards zero the steps may halve


def test_the_histogram_is_a_count_by_hand():
    """FastGelu's formula in float32 against the exact function, with math.erf and a loop."""
    x = np.linspace(-6, 6, 4001).astype(np.float32)
    y = (0.5 * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x**3)))).astype(np.float32)
    exact = np.array([float(v) * 0.5 * math.erfc(-float(v) / math.sqrt(2)) for v in x])
    counts, largest = [0] * (len(EDGES) + 1), 0.0
    for computed, true in zip(y.tolist(), exact.tolist(), strict=True):
        unit = 2.0 ** (max(math.frexp(true)[1] - 1, -126) - 23) if true else 2.0**-149
        error = abs(computed - true) / unit
        largest = max(largest, error)
        counts[sum(error > edge for edge in EDGES)] += 1
    found = histogram(ulp_errors(y, exact, torch.float32))
    assert found.counts == tuple(counts)
    assert found.largest == pytest.approx(largest, rel=1e-12)
    assert found.nonfinite == 0


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [(torch.float16, 65504.0), (torch.bfloat16, 3.3895313892515355e38), (torch.float32, 3.4028234663852886e38)],
)
def test_halfway_above_the_largest_number_is_infinity(dtype, largest):
    """Ties go to the even neighbour, which is the power of two that the format has not (IEEE 754, 4.3.1)."""
    step = largest - torch.nextafter(torch.tensor(largest, dtype=dtype), torch.tensor(0.0, dtype=dtype)).item()
    half = largest + step / 2
    below = math.nextafter(half, 0.0)
    assert torch.tensor([half, largest], dtype=torch.float64).to(dtype).tolist() == [math.inf, largest]
    assert overflowed(np.array([half, below, -half]), dtype).tolist() == [math.inf, below, -math.inf]


def test_infinities_and_nan():
    found = ulp_errors(np.array([np.inf, np.inf, np.nan, 1.0]), np.array([1e39, 1.0, 1.0, np.nan]), torch.float32)
    assert found[0] == 0
    assert np.isinf(found[1])
    assert np.isnan(found[2:]).all()
    assert histogram(found).nonfinite == 3


@pytest.mark.parametrize(("dtype", "finite"), [(torch.float16, 63_488), (torch.bfloat16, 65_280)])
def test_all_16_bit_values_are_all(dtype, finite):
    values = all_values(dtype)
    assert len(set(values.view(torch.int16).tolist())) == 65_536
    assert len(sweep_values(dtype)) == finite
    names, special = special_values(dtype)
    assert int(special.isnan().sum()) == 65_536 - finite - 2 + 1  # all NaNs, and the named one
    assert len(names) == len(special)


def test_the_strided_values_reach_every_binade_of_float32():
    values = strided_values()
    assert values.isfinite().all()
    exponents = set(torch.frexp(values[values.abs() >= 2.0**-126]).exponent.tolist())
    assert exponents == set(range(-125, 129))
    assert len(values) > 320_000


def test_values_in_16_bit_are_compared_with_the_limits_of_float32():
    exact = np.array([1.0, -65504.0, np.inf, np.nan], dtype=np.float16)
    np.testing.assert_array_equal(overflowed(exact, torch.float32), exact.astype(np.float64))
