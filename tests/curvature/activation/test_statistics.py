"""The statistics against mpmath, numpy in float64 and autograd; the metric that adds them up over batches."""

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from lit_gelu import activations
from lit_gelu.curvature import STATISTICS, ActivationStatistics, activation_statistics
from lit_gelu.curvature.activation.statistics import activation_sums, statistics_from_sums
from lit_gelu.errors import ArgumentError

KINKS = {  # where f' jumps, and by how much: from the definitions
    "relu": [(0, 1)],
    "leaky_relu": [(0, 0.99)],
    "elu(alpha=0.5)": [(0, 0.5)],
    "hard_swish": [(-3, -0.5), (3, -0.5)],
}
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
    h = x.std() / 4
    saturated, linear, falling = abs(first) < 0.01, abs(first - 1) < 0.01, first <= -0.01
    return {
        "mean": x.mean(),
        "standard_deviation": x.std(),
        "skewness": stats.skew(x),
        "excess_kurtosis": stats.kurtosis(x),
        "mean_output": f.mean(),
        "mean_squared_output": (f**2).mean(),
        "mean_derivative": first.mean(),
        "share_decreasing": (first < 0).mean(),
        "share_falling": falling.mean(),
        "share_saturated": saturated.mean(),
        "share_linear": linear.mean(),
        "share_transition": (~saturated & ~linear & ~falling).mean(),
        "kink_mass": sum(abs(jump) * (abs(x - at) <= h).mean() / (2 * h) for at, jump in KINKS.get(activation, [])),
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


@pytest.mark.parametrize("magnitude", [1e20, 3e38])
def test_huge_inputs_do_not_turn_into_nan(magnitude):
    x = torch.tensor([-magnitude, magnitude])
    figures = activation_statistics("gelu_tanh", x)
    assert figures["mean_gate"] == figures["share_linear"] == figures["share_saturated"] == 0.5
    assert figures["mean_abs_second_derivative"] == 0
    assert figures["standard_deviation"] == pytest.approx(magnitude)


def test_gate_is_undefined_where_f_of_zero_is_not_zero():
    figures = activation_statistics("softplus", torch.randn(10))
    assert math.isnan(figures.pop("mean_gate"))
    assert not any(math.isnan(value) for value in figures.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_inputs_are_computed_in_float32(dtype):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(2)).to(dtype)
    assert torch.equal(activation_sums("gelu", x), activation_sums("gelu", x.float()))


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_moments_about_a_pivot_survive_a_large_mean(offset):
    x = torch.tensor(stats.gamma(2.0).rvs(5000, random_state=1)) + offset
    pivot = x.mean() + 0.5
    figures = statistics_from_sums(activation_sums("relu", x, pivot=pivot), pivot)
    figures = dict(zip(STATISTICS, figures.tolist(), strict=True))
    assert figures["skewness"] == pytest.approx(stats.skew(x.numpy()), rel=1e-6)
    assert figures["excess_kurtosis"] == pytest.approx(stats.kurtosis(x.numpy()), rel=1e-5)
    assert activation_statistics("relu", x)["excess_kurtosis"] == pytest.approx(stats.kurtosis(x.numpy()), rel=1e-5)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.5, 1.0), (-1.0, 3.0)])
@pytest.mark.parametrize("activation", KINKS)
def test_kink_mass_of_a_normal_sample_is_that_of_its_density_but_for_the_stated_bias(activation, mean, std):
    x = mean + std * torch.special.ndtri((torch.arange(1_000_000, dtype=torch.float64) + 0.5) / 1e6)
    expected = 0.0
    for at, jump in KINKS[activation]:
        u = (at - mean) / std
        density = stats.norm.pdf(u) / std
        bias = (1 / 4) ** 2 / 6 * (u * u - 1)  # h^2 p'' / 6 p, with h = s / 4
        expected += abs(jump) * density * (1 + bias)
    assert activation_statistics(activation, x)["kink_mass"] == pytest.approx(expected, rel=2e-3)


def test_kink_mass_of_learned_kinks_is_that_of_the_parameters_now():
    module, x = nn.PReLU(2), torch.randn(20_000, 2, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        module.weight.copy_(torch.tensor([1.0, -1.0]))  # no kink, a jump of 2
    h = x.double().std(correction=0).item() / 4
    expected = 2 * (x[:, 1].abs() <= h).double().mean().item() / 2 / (2 * h)
    assert activation_statistics(module, x)["kink_mass"] == pytest.approx(expected, rel=1e-6)


def test_unknown_kinks_leave_the_kink_mass_undefined():
    assert math.isnan(activation_statistics(nn.Softshrink(), torch.randn(10))["kink_mass"])
    registry = activations.ActivationRegistry()
    registry.register("soft_shrink")(nn.Softshrink)
    assert math.isnan(activation_statistics("soft_shrink", torch.randn(10), registry)["kink_mass"])


X = torch.tensor([math.nan, 0.5, 2.0, math.inf, -4.0, -math.inf], dtype=torch.float64)
FINITE = X[X.isfinite()]


@pytest.mark.parametrize("name", ["gelu", "relu", "softplus", "prelu", "swish(beta=2.0, learnable=True)", "hard_swish"])
def test_figures_are_those_of_the_finite_elements(name):
    module = activations.create(name).double()
    figures, expected = activation_statistics(module, X), activation_statistics(module, FINITE)
    assert figures.pop("share_non_finite") == 0.5
    expected.pop("share_non_finite")
    assert figures == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_an_activation_that_is_infinite_at_zero():
    registry = activations.ActivationRegistry()
    registry.register("reciprocal")(torch.reciprocal)
    figures = activation_statistics("reciprocal", X, registry)
    assert figures["mean_output"] == pytest.approx((1 / FINITE).mean().item(), rel=1e-12)
    assert figures["mean_squared_derivative"] == pytest.approx((FINITE**-4.0).mean().item(), rel=1e-12)
    assert figures["mean_abs_second_derivative"] == pytest.approx((2 / FINITE.abs() ** 3).mean().item(), rel=1e-12)


def test_batches_add_up_to_the_whole():
    x = torch.randn(5, 40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    metric = ActivationStatistics({"a": "silu", "b": nn.GELU()})
    for batch in x:
        metric.update({"a": batch, "b": 2 * batch})
    assert metric.compute()["a"] == pytest.approx(activation_statistics("silu", x), rel=1e-9)
    assert metric.compute()["b"] == pytest.approx(activation_statistics("gelu", 2 * x), rel=1e-9)
    assert metric.compute()["a"]["excess_kurtosis"] == pytest.approx(stats.kurtosis(x.flatten()), rel=1e-6)


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
