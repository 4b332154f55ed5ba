"""The statistics against mpmath, numpy in float64, and autograd."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lit_gelu import activations
from lit_gelu.curvature import STATISTICS, SUMS, activation_statistics, activation_sums, statistics_from_sums

NAMES = ["relu", "leaky_relu", "elu(alpha=0.5)", "gelu", "gelu_tanh", "gelu_sigmoid", "silu", "hard_swish", "mish"]


def sigmoid_form_of_gelu_tanh(x):
    """torch's 1 + tanh(w) is exactly 0 in float64 from x = -7 on, where f' is small and negative."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def brute_force(activation, x):
    """Every statistic from float64 autograd, one element at a time, by numpy."""
    x = x.double().flatten()
    x.requires_grad_()
    f = sigmoid_form_of_gelu_tanh(x) if activation == "gelu_tanh" else activations.create(activation).double()(x)
    (first,) = torch.autograd.grad(f.sum(), x, create_graph=True)
    second = torch.autograd.grad(first.sum(), x)[0] if first.requires_grad else torch.zeros_like(x)
    x, f, first, second = (tensor.detach().numpy() for tensor in (x, f, first, second))
    gate = np.array([d if v == 0 else y / v for v, y, d in zip(x, f, first, strict=True)])
    return {
        "mean": x.mean(),
        "standard_deviation": x.std(),
        "share_decreasing": (first < 0).mean(),
        "share_saturated": (abs(first) < 0.01).mean(),
        "share_linear": (abs(first - 1) < 0.01).mean(),
        "mean_abs_second_derivative": abs(second).mean(),
        "mean_squared_derivative": (first**2).mean(),
        "mean_gate": gate.mean(),
        "share_non_finite": 0.0,
    }


@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_autograd_and_numpy(activation, dtype):
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)
    assert activation_statistics(activation, x) == pytest.approx(brute_force(activation, x), rel=1e-6, abs=1e-7)


def test_gelu_of_a_normal_input_equals_the_closed_forms():
    quantiles = (torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000
    figures = activation_statistics("gelu", torch.special.ndtri(quantiles))
    third = mpmath.mpf(1) / 3
    assert figures["mean_squared_derivative"] == pytest.approx(
        float(third + 2 / (3 * mpmath.sqrt(3) * mpmath.pi)), abs=2e-5
    )
    assert figures["mean_gate"] == pytest.approx(0.5, abs=1e-12)
    assert figures["share_decreasing"] == pytest.approx(float(mpmath.ncdf(-0.7517915246935645)), abs=1e-5)
    second = mpmath.quad(lambda t: abs(2 - t * t) * mpmath.npdf(t) ** 2, [-40, -mpmath.sqrt(2), mpmath.sqrt(2), 40])
    assert figures["mean_abs_second_derivative"] == pytest.approx(float(second), abs=2e-5)


def test_names_and_columns_agree():
    assert len(set(STATISTICS)) == len(STATISTICS) == 9
    assert activation_sums("gelu", torch.randn(3, 4)).shape == (len(SUMS),)


def test_sums_of_parts_add_up_to_the_sums_of_the_whole():
    x = torch.randn(31, 7, generator=torch.Generator().manual_seed(1))
    parts = activation_sums("silu", x[:13]) + activation_sums("silu", x[13:])
    torch.testing.assert_close(parts, activation_sums("silu", x), rtol=1e-13, atol=0)


def test_stacked_sites_have_sums_of_their_own():
    x = torch.randn(3, 31, 7, generator=torch.Generator().manual_seed(1))
    each = torch.stack([activation_sums("mish", rows) for rows in x])
    torch.testing.assert_close(activation_sums("mish", x, stacked=True), each, rtol=1e-13, atol=0)


def test_not_finite_inputs_are_counted_and_left_out():
    x = torch.tensor([math.nan, 1.0, -math.inf, -2.0, math.inf])
    figures = activation_statistics("gelu", x)
    assert figures.pop("share_non_finite") == pytest.approx(0.6)
    expected = activation_statistics("gelu", torch.tensor([1.0, -2.0]))
    assert figures == pytest.approx({name: expected[name] for name in figures})


def test_nothing_at_all_gives_nan_throughout():
    assert all(math.isnan(value) for value in activation_statistics("gelu", torch.empty(0, 4)).values())


def test_only_not_finite_inputs_leave_nothing_to_average():
    figures = activation_statistics("gelu", torch.full((4,), math.nan))
    assert figures.pop("share_non_finite") == 1.0
    assert all(math.isnan(value) for value in figures.values())


@pytest.mark.parametrize("magnitude", [1e20, 3e38])
def test_huge_inputs_do_not_turn_into_nan(magnitude):
    x = torch.tensor([-magnitude, magnitude])
    figures = activation_statistics("gelu_tanh", x)
    assert figures["mean_gate"] == figures["share_linear"] == figures["share_saturated"] == 0.5
    assert figures["mean_abs_second_derivative"] == 0
    assert figures["standard_deviation"] == pytest.approx(magnitude)


def test_deviation_survives_a_mean_a_million_times_as_large():
    x = torch.tensor([1e6 - 1, 1e6, 1e6 + 1])
    assert activation_statistics("relu", x)["standard_deviation"] == pytest.approx(math.sqrt(2 / 3), rel=1e-3)


def test_gate_at_zero_is_the_derivative():
    assert activation_statistics("gelu", torch.tensor([0.0, -0.0]))["mean_gate"] == 0.5


def test_gate_is_undefined_where_f_of_zero_is_not_zero():
    figures = activation_statistics("softplus", torch.randn(10))
    assert math.isnan(figures.pop("mean_gate"))
    assert not any(math.isnan(value) for value in figures.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_inputs_are_computed_in_float32(dtype):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(2)).to(dtype)
    assert torch.equal(activation_sums("gelu", x), activation_sums("gelu", x.float()))


def test_learned_parameters_are_used_as_they_are_now():
    module = nn.PReLU(3)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([0.0, 0.5, -1.0]))
    figures = activation_statistics(module, -torch.ones(5, 3))
    assert figures["mean_squared_derivative"] == pytest.approx((0 + 0.25 + 1) / 3)
    assert figures["share_decreasing"] == pytest.approx(1 / 3)


def test_relu_has_no_smooth_curvature():
    assert activation_statistics("relu", torch.randn(100))["mean_abs_second_derivative"] == 0


def test_inputs_that_require_gradients_are_detached():
    x = torch.randn(4, requires_grad=True)
    assert not activation_sums("gelu", x).requires_grad


class ScalarReads(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("activation", [*NAMES, "prelu", "softplus"])
def test_the_host_reads_nothing(activation):
    module = activations.create(activation)
    with ScalarReads() as reads:
        statistics_from_sums(activation_sums(module, torch.randn(10, 4)))
    assert reads.count == 0
