"""The derivative from an output and a bit, against scipy's functions in float64 and the lowest points in mpmath."""

import mpmath
import numpy as np
import pytest
import torch
from kernel_oracles import gelu, gelu_tanh, hard_swish, mish, swish
from torch.nn import functional as F

from lit_gelu.activations.families import gelu as gelu_family
from lit_gelu.activations.families import hard_swish as hard_swish_family
from lit_gelu.activations.families import mish as mish_family
from lit_gelu.activations.families import swish as swish_family
from lit_gelu.activations.numerics.valley import ValleyOutput, scaled, slope_of

VALLEYS = {
    "gelu": (gelu_family.GELU_VALLEYS["none"], gelu),
    "gelu_tanh": (gelu_family.GELU_VALLEYS["tanh"], gelu_tanh),
    "gelu_sigmoid": (gelu_family.GELU_VALLEYS["sigmoid"], swish(1.702)),
    "silu": (swish_family.SILU_VALLEY, swish(1.0)),
    "mish": (mish_family.VALLEY, mish),
    "hard_swish": (hard_swish_family.VALLEY, hard_swish),
}
LOWEST = {
    "gelu": lambda x: mpmath.ncdf(x) + x * mpmath.npdf(x),
    "gelu_tanh": lambda x: mpmath.diff(
        lambda t: t * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (t + mpmath.mpf("0.044715") * t**3))), x
    ),
    "gelu_sigmoid": lambda x: 1 + mpmath.exp(mpmath.mpf("-1.702") * x) * (1 + mpmath.mpf("1.702") * x),
    "silu": lambda x: 1 + mpmath.exp(-x) * (1 + x),
    "mish": lambda x: mpmath.diff(lambda t: t * mpmath.tanh(mpmath.log(1 + mpmath.exp(t))), x),
    "hard_swish": lambda x: 2 * x + 3,
}
# The largest error anywhere, and the root mean square for standard normal inputs, of all functions.
BOUNDS = {
    torch.bfloat16: (0.017, 2.2e-3),
    torch.float16: (7e-3, 5e-4),
    torch.float32: (3e-4, 5e-6),
    torch.float64: (1.5e-6, 1e-7),
}


def inputs(dtype):
    """All values of 16 bits; of wider types a dense grid, the neighbours of 0 and the ends."""
    if dtype.itemsize == 2:
        return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    grid = torch.linspace(-40.0, 40.0, 1 << 19, dtype=torch.float64).to(dtype)
    tiny = torch.logspace(-300 if dtype == torch.float64 else -44, 0, 2000, dtype=torch.float64).to(dtype)
    ends = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e30, -1e30], dtype=dtype)
    return torch.cat((grid, tiny, -tiny, ends))


def decoded(valley, x):
    return slope_of(valley, valley.output(x), (x >= valley.lowest).to(torch.uint8))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", VALLEYS)
def test_the_derivative_is_told_by_output_and_bit(name, dtype):
    valley, oracle = VALLEYS[name]
    x = inputs(dtype)
    wanted = torch.from_numpy(oracle(x.double().numpy())[1])
    found = decoded(valley, x).double()
    known = ~valley.output(x).isnan()  # torch's exact GELU of -inf is NaN
    assert found[~known].isnan().all()
    assert (found - wanted)[known].abs().max() <= BOUNDS[dtype][0]
    normal = torch.randn(1 << 17, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    error = decoded(valley, normal).double() - torch.from_numpy(oracle(normal.double().numpy())[1])
    assert error.square().mean().sqrt() <= BOUNDS[dtype][1]


@pytest.mark.parametrize("name", VALLEYS)
def test_the_lowest_point(name):
    valley, _ = VALLEYS[name]
    with mpmath.workdps(40):
        lowest = mpmath.findroot(LOWEST[name], valley.lowest)
    assert abs(lowest - valley.lowest) <= np.finfo(float).eps


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", VALLEYS)
def test_a_left_tail_that_underflowed_has_no_slope_and_0_has_a_half(name, dtype):
    valley, _ = VALLEYS[name]
    y = torch.tensor([0.0, -0.0, 0.0, -0.0], dtype=dtype)
    right = torch.tensor([0, 0, 1, 1], dtype=torch.uint8)
    half = 0.6 if name == "mish" else 0.5
    slopes = slope_of(valley, y, right)
    assert slopes[:2].tolist() == [0.0, 0.0]  # exactly, as dropout has it
    torch.testing.assert_close(slopes[2:], torch.tensor([half, half]), atol=2e-6, rtol=0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", VALLEYS)
def test_a_multiple_has_the_multiple_of_the_slope(name, dtype):
    valley, oracle = VALLEYS[name]
    x = inputs(dtype)
    x = x[x.abs() < 1e4]
    doubled = scaled(valley, 2.0)  # exact, so that the outputs tell as much
    torch.testing.assert_close(doubled.output(x), 2 * valley.output(x), rtol=0, atol=0)
    torch.testing.assert_close(decoded(doubled, x), 2 * decoded(valley, x), rtol=1e-6, atol=1e-6)
    third = scaled(valley, 1 / 3)
    wanted = torch.from_numpy(oracle(x.double().numpy())[1]) / 3
    assert (decoded(third, x).double() - wanted).abs().max() <= BOUNDS[dtype][0] / 1.5


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_outputs_of_another_kernel_are_told_too(dtype):
    """Those that differ by a spacing, which a table of torch's own outputs may lack."""
    valley, oracle = VALLEYS["silu"]
    x = torch.linspace(-12, 12, 4001, dtype=torch.float64).to(dtype)
    y = valley.output(x)
    right = (x >= valley.lowest).to(torch.uint8)
    away = (x < valley.lowest - 0.2) | (x > valley.lowest + 0.2)
    wanted = torch.from_numpy(oracle(x.double().numpy())[1])
    integers = y.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    for step in (-1, 1):
        error = slope_of(valley, (integers + step).view(dtype), right).double() - wanted
        assert error[away & (y != 0)].abs().max() <= 1.2 * BOUNDS[dtype][0]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (1 << 16,), ((1 << 16) + 3,), (3, 4, 5, 6)])
def test_shapes_and_pieces(shape):
    valley, _ = VALLEYS["gelu"]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    rule = ValleyOutput(valley)
    y, bits = rule.forward(x)
    assert bits.numel() == -(-x.numel() // 8)
    by_x = rule.backward(torch.full_like(y, 2.0), y, bits)
    wanted = torch.ops.aten.gelu_backward(torch.full_like(y, 2.0), x)
    torch.testing.assert_close(by_x, wanted, atol=5e-4, rtol=0)
    torch.testing.assert_close(y, F.gelu(x), atol=0, rtol=0)
