"""Every 16-bit input through the interpreted kernels and through their formulas, beside float64."""

from pathlib import Path

import numpy as np
import pytest
from child_processes import run_warm
from kernel_cases import DTYPES
from kernel_errors import ORACLES, by_formulas, exact, inputs, slope_errors, value_errors

pytest.importorskip("triton", reason="Triton has no build for this system")


@pytest.fixture(scope="module", params=["kernels", "formulas"])
def found(request, tmp_path_factory):
    if request.param == "formulas":
        return by_formulas()
    path = tmp_path_factory.mktemp("kernels") / "values.npz"
    script = Path(__file__).parents[2] / "interpreted_kernels.py"
    run_warm(script, path, is_interpreted=True)
    with np.load(path) as file:
        return dict(file)


@pytest.fixture(scope="module", params=DTYPES)
def dtype(request):
    return request.param


@pytest.mark.parametrize("name", ORACLES)
def test_values_are_within_055_of_a_unit_in_the_last_place(found, dtype, name):
    errors = value_errors(found[f"{name} {dtype} value"], name, dtype)
    assert errors.size > 24_000
    assert errors.max() <= 0.55


@pytest.mark.parametrize("name", ORACLES)
def test_slopes_are_within_051_of_a_unit_in_the_last_place_of_the_largest(found, dtype, name):
    errors = slope_errors(found[f"{name} {dtype} slope"], name, dtype)
    assert errors.size > 60_000
    assert errors.max() <= 0.51


@pytest.mark.parametrize("name", ORACLES)
def test_limits_and_nan(found, dtype, name):
    x = inputs(dtype)
    for got, wanted in zip(
        (found[f"{name} {dtype} value"], found[f"{name} {dtype} slope"]), exact(name, dtype), strict=True
    ):
        for end in (-np.inf, np.inf):
            assert got[x == end] == wanted[x == end]
        assert np.array_equal(np.isnan(got), np.isnan(x))
