"""The mean-field maps against published slopes, a simulation's figures, and wide nets with random weights."""

import math

import mpmath
import pytest
import torch
from gaussian_oracle import case_of

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError, gain
from lit_gelu.activations.analysis.depth import chi, edge_of_chaos, propagate, variance_map, variance_slope
from lit_gelu.activations.errors import NoGaussianMomentsError

SLOPES = {
    "gelu": 1.144,
    "gelu_tanh": 1.144,
    "gelu_sigmoid": 1.136,
    "silu": 1.173,
    "mish": 1.076,
    "elu": 0.891,
    "selu": 0.783,
    "hard_swish": 1.224,
    "relu": 1.0,
    "tanh": 0.461,
}
GRADIENT_GROWTH = {
    "gelu": 1.07203,
    "gelu_tanh": 1.07202,
    "gelu_sigmoid": 1.06540,
    "silu": 1.06663,
    "mish": 1.05912,
    "elu": 1.03591,
    "elu(alpha=0.5)": 1.01080,
    "selu": 1.07157,
    "hard_swish": 1.08132,
    "relu": 1.0,
    "leaky_relu(negative_slope=0.2)": 1.0,
    "softplus": 0.318,
    "tanh": 1.178,
}
# Bias variance and slope of the variance map at the edge of chaos.
CRITICAL = {
    "gelu": (0.067192, 1.067),
    "silu": (0.062472, 1.099),
    "mish": (0.055818, 1.016),
    "hard_swish": (0.075207, 1.132),
}


@pytest.mark.parametrize("name", SLOPES)
def test_slope_of_the_variance_map_at_the_forward_gain(name):
    assert variance_slope(name, 1.0, gain(name) ** 2) == pytest.approx(SLOPES[name], abs=5e-4)


@pytest.mark.parametrize("spec", GRADIENT_GROWTH)
def test_growth_of_gradients_at_the_forward_gain(spec):
    digits = len(str(GRADIENT_GROWTH[spec]).split(".")[1])
    assert chi(spec, 1.0, gain(spec) ** 2) == pytest.approx(GRADIENT_GROWTH[spec], abs=0.6 * 10.0**-digits)


@pytest.mark.parametrize("name", ["gelu", "silu", "hard_swish", "elu(alpha=0.5)", "relu"])
@pytest.mark.parametrize("q", [0.3, 1.0, 4.0])
def test_the_slope_is_that_of_the_map(name, q):
    step = 1e-5 * q
    above, below = (variance_map(name, q + sign * step, 1.7) for sign in (1, -1))
    assert variance_slope(name, q, 1.7) == pytest.approx((above - below) / (2 * step), abs=1e-8)


def test_the_slope_against_mpmath():
    case = case_of("silu")
    with mpmath.workdps(20):

        def integrand(x):
            f, slope = case.exact(x)[:2]
            return x * f * slope * mpmath.npdf(x, 0, 1.5)

        exact = 2 * mpmath.quad(integrand, [-15, -9, -6, -3, 0, 3, 6, 9, 15]) / mpmath.mpf(2.25)
    assert variance_slope("silu", 2.25, 2.0) == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.parametrize("name", CRITICAL)
def test_the_edge_of_chaos(name):
    bias_variance, slope = CRITICAL[name]
    critical = edge_of_chaos(name)
    assert critical.weight_variance == pytest.approx(gain(name, "backward") ** 2, rel=1e-12)
    assert critical.bias_variance == pytest.approx(bias_variance, abs=6e-7)
    assert variance_slope(name, 1.0, critical.weight_variance) == pytest.approx(slope, abs=6e-4)
    assert variance_map(name, 1.0, critical.weight_variance, critical.bias_variance) == pytest.approx(1, abs=1e-13)
    assert chi(name, 1.0, critical.weight_variance) == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "identity"])
def test_scale_invariant_activations_need_no_bias(name):
    assert edge_of_chaos(name, 2.5).bias_variance == 0.0
    assert edge_of_chaos(name).weight_variance == pytest.approx(gain(name) ** 2)


def test_no_edge_of_chaos_where_the_bias_would_have_a_negative_variance():
    with pytest.raises(ActivationArgumentError, match=r"'softplus' has no edge of chaos at q=1: E f\^2 = 0\.921246"):
        edge_of_chaos("softplus")


@pytest.mark.parametrize(
    "activation", ["mega_laplace(mu=50.0)", activations.ActivationSpec.of("mega_laplace", mu=50.0)]
)
def test_no_edge_of_chaos_where_no_gradient_comes_through(activation):
    with pytest.raises(NoGaussianMomentsError, match=r"^'mega_laplace\(mu=50\.0\)' has no edge of chaos.*E f'\^2 is 0"):
        edge_of_chaos(activation)


def test_forty_layers_of_gelu_leave_the_unstable_fixed_point():
    """Published for a simulated net of width 768: q of 0.8 becomes 1e-7, 1.2 becomes 88, and with He's gain 4e-11."""
    forward = gain("gelu") ** 2
    assert 1e-7 < propagate("gelu", 39, 0.8, forward).q[-1] < 1e-6
    assert 88 < propagate("gelu", 39, 1.2, forward).q[-1] < 130
    assert propagate("gelu", 39, 1.0, forward).q[-1] == pytest.approx(1, abs=1e-10)
    assert 2e-11 < propagate("gelu", 39, 1.0, 2.0).q[-1] < 8e-11
    assert propagate("relu", 39, 1.7, 2.0).q[-1] == pytest.approx(1.7, rel=1e-12)


def test_a_stable_fixed_point_is_found_from_both_sides():
    for q0 in (0.2, 5.0):
        assert propagate("tanh", 60, q0, gain("tanh") ** 2).q[-1] == pytest.approx(1, abs=1e-12)


def test_the_profile_is_the_maps_repeated():
    profile = propagate("silu", 2, 0.7, 2.5, 0.1)
    q1 = variance_map("silu", 0.7, 2.5, 0.1)
    assert profile.q == pytest.approx((0.7, q1, variance_map("silu", q1, 2.5, 0.1)), rel=1e-12)
    assert profile.chi == pytest.approx((chi("silu", 0.7, 2.5), chi("silu", q1, 2.5)), rel=1e-12)
    assert profile.gradient_ratio == pytest.approx(profile.chi[0] * profile.chi[1])


def _random_net(name, width, depth, critical, generator):
    """Return mean squares of pre-activations, and of their gradients, layer by layer."""
    z = torch.randn(64, width, generator=generator, dtype=torch.float64).requires_grad_()
    layers = [z]
    for _ in range(depth):
        weight = torch.randn(width, width, generator=generator, dtype=torch.float64)
        bias = torch.randn(width, generator=generator, dtype=torch.float64) * math.sqrt(critical.bias_variance)
        active = activations.functional.derivative(name, layers[-1], 0)
        layers.append(active @ weight.T * math.sqrt(critical.weight_variance / width) + bias)
    last = torch.randn(layers[-1].shape, generator=generator, dtype=torch.float64)
    gradients = torch.autograd.grad(layers[-1], layers, last)
    return ([layer.detach().square().mean().item() for layer in layers], [g.square().mean().item() for g in gradients])


@pytest.mark.parametrize("name", ["gelu", "tanh", "hard_swish"])
def test_wide_random_nets_follow_the_maps(name):
    """Width 700, 5 layers, 64 inputs: each mean square is within a few times sqrt(2 / 700) a layer of the theory."""
    critical = edge_of_chaos(name)
    generator = torch.Generator().manual_seed(1)
    squares, gradients = _random_net(name, 700, 5, critical, generator)
    profile = propagate(name, 5, 1.0, critical.weight_variance, critical.bias_variance)
    for layer, (square, q) in enumerate(zip(squares, profile.q, strict=True)):
        assert square == pytest.approx(q, rel=0.02 + 0.04 * layer)
    assert gradients[0] / gradients[-1] == pytest.approx(profile.gradient_ratio, rel=0.25)


@pytest.mark.parametrize("arguments", [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, -1.0), (1.0, 1.0, -0.1)])
def test_refuses_variances_that_are_none(arguments):
    with pytest.raises(ActivationArgumentError, match="q must be positive, the variances 0 or positive"):
        variance_map("gelu", *arguments)


def test_refuses_a_depth_that_is_none_and_names_the_layer_where_the_signal_is_lost():
    with pytest.raises(ActivationArgumentError, match=r"depth=-1"):
        propagate("gelu", -1)
    with pytest.raises(NoGaussianMomentsError, match=r"q is 0\.0 in layer 2 of 4"):
        propagate("relu", 3, weight_variance=0.0)
