"""Every 16-bit input through the interpreted kernels, beside float64."""

import sys
from pathlib import Path

import kernel_oracles as oracles
import numpy as np
import pytest
import torch
from child_processes import run_command
from kernel_cases import FUNCTIONS

from lit_gelu.activations.gpu import formulas

pytest.importorskip("triton", reason="Triton has no build for this system")

ORACLES = {
    "gelu": oracles.gelu,
    "gelu_tanh": oracles.gelu_tanh,
    "gelu_sigmoid": oracles.swish(1.702),
    "silu": oracles.swish(1.0),
    "swish": oracles.swish(0.5),
    "mish": oracles.mish,
    "elu": oracles.elu(1.0),
    "elu_half": oracles.elu(0.5),
    "hard_swish": oracles.hard_swish,
}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def by_formulas():
    """The same of the formulas in torch's operations, as `interpreted_kernels` writes them."""
    entries = {}
    for label, dtype in DTYPES.items():
        x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
        for key, (name, p0, p1) in FUNCTIONS.items():
            entries[f"{key} {label} value"] = formulas.value(name, x, p0, p1).double().numpy()
            entries[f"{key} {label} slope"] = formulas.slope(name, x, p0, p1).to(dtype).double().numpy()
    return entries


@pytest.fixture(scope="module", params=["kernels", "formulas"])
def found(request, tmp_path_factory):
    if request.param == "formulas":
        return by_formulas()
    path = tmp_path_factory.mktemp("kernels") / "values.npz"
    run_command([
        sys.executable,
        "-P",
        "-W",
        "ignore",
        str(Path(__file__).parents[2] / "interpreted_kernels.py"),
        str(path),
    ])
    with np.load(path) as file:
        return dict(file)


@pytest.fixture(scope="module", params=DTYPES)
def dtype(request):
    return request.param


@pytest.fixture(scope="module")
def x(dtype):
    """Every value of the dtype."""
    return torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype]).double().numpy()


def spacing(values, dtype):
    """Return the distance between neighbours of the dtype at each value; at subnormal ones that of the least."""
    info = torch.finfo(DTYPES[dtype])
    return info.eps * 2.0 ** np.floor(np.log2(np.maximum(np.abs(values), info.tiny)))


@pytest.mark.parametrize("name", ORACLES)
def test_values_are_within_055_of_a_unit_in_the_last_place(found, x, dtype, name):
    with np.errstate(all="ignore"):
        wanted = ORACLES[name](x)[0]
    info = torch.finfo(DTYPES[dtype])
    normal = np.isfinite(x) & (np.abs(wanted) >= info.tiny) & (np.abs(wanted) <= info.max)
    assert normal.sum() > 24_000
    error = np.abs(found[f"{name} {dtype} value"][normal] - wanted[normal]) / spacing(wanted[normal], dtype)
    assert error.max() <= 0.55


@pytest.mark.parametrize("name", ORACLES)
def test_slopes_are_within_051_of_a_unit_in_the_last_place_of_the_largest(found, x, dtype, name):
    with np.errstate(all="ignore"):
        wanted = ORACLES[name](x)[1]
    read = np.isfinite(x) & ((x == 0) | (np.abs(x) >= torch.finfo(DTYPES[dtype]).tiny))  # the interpreter flushes
    error = np.abs(found[f"{name} {dtype} slope"][read] - wanted[read])
    assert error.max() <= 0.51 * spacing(np.array(1.13), dtype)


@pytest.mark.parametrize("name", ORACLES)
def test_limits_and_nan(found, x, dtype, name):
    value, slope = found[f"{name} {dtype} value"], found[f"{name} {dtype} slope"]
    with np.errstate(all="ignore"):
        wanted = ORACLES[name](x)
    for got, exact in zip((value, slope), wanted, strict=True):
        for end in (-np.inf, np.inf):
            assert got[x == end] == exact[x == end]
        assert np.array_equal(np.isnan(got), np.isnan(x))
