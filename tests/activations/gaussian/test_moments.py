"""Moments over normal pre-activations against mpmath and closed forms."""

import math

import mpmath
import pytest
import torch
from gaussian_oracle import FIELDS, case_of, exact_moments, is_close
from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.gaussian import gaussian_moments, normal_rule
from lit_gelu.errors import ArgumentError

POWERS = tuple(sign * 2.0**-k for k in range(8) for sign in (-1, 1))  # for a function with a steep place at 0


@pytest.mark.parametrize(
    ("spec", "mean", "std", "breaks"),
    [
        ("selu", 0.0, 1.0, ()),
        ("softplus", 0.0, 1.0, POWERS),
        ("gelu", 0.0, 10.0, ()),
        ("gelu", -8.0, 0.5, ()),
        ("elu(alpha=0.3)", -2.0, 0.3, ()),
        ("hard_swish", 0.0, 1e-5, ()),
        ("gaussian_gelu(mu=0.6, sigma=2.5)", 1.5, 3.0, ()),
        ("relu", -3.0, 1.0, ()),
        ("silu", 1.0, 10.0, POWERS),
        ("gelu_tanh", -2.0, 3.0, POWERS),
        ("mish", 4.0, 0.5, POWERS),
        ("tanh", 0.0, 0.01, POWERS),
        ("swish(beta=50.0)", 0.2, 1.0, POWERS),
        ("cdf_linear(distribution='laplace')", 0.4, 2.0, POWERS),
    ],
)
def test_against_mpmath(spec, mean, std, breaks):
    facts = activations.info(spec)
    places = [*breaks, *facts.inflections, *(place for place, _ in facts.kinks)]
    exact = exact_moments(case_of(spec), mean, std, places)
    moments, size = gaussian_moments(spec, mean, std), 1 + mean**2 + std**2
    for field in FIELDS:
        positive = field in {"value_squared", "variance", "derivative_squared"}
        computed = getattr(moments, field).item()
        assert is_close(computed, exact[field], 1e-11, 1e-30 if positive else 2e-14 * size), (field, computed)


@pytest.mark.parametrize("std", [1.0, 10.0])
def test_a_corner_of_the_second_derivative_next_to_a_whole_number(std):
    """f'' of x Phi((x - 5) / 0.01) passes through 0 at 5.00008, next to where a panel ends."""
    spec, corner = "gaussian_gelu(mu=5.0, sigma=0.01)", 5 + 0.01 * (-500 + math.sqrt(500**2 + 8)) / 2
    breaks = [corner, *(5 + 0.01 * k for k in range(-14, 15))]
    exact = exact_moments(case_of(spec), 0.0, std, breaks)["abs_second_derivative"]
    assert is_close(gaussian_moments(spec, 0.0, std).abs_second_derivative.item(), exact, 1e-11)


def test_shapes_broadcast_and_every_element_is_that_of_its_own_mean_and_deviation():
    mean, std = torch.tensor([[0.0], [-9.0]]), torch.tensor([0.5, 1.0, 2.0])
    moments = gaussian_moments("gelu", mean, std)
    assert {(field.shape, field.dtype) for field in vars(moments).values()} == {((2, 3), torch.float64)}
    alone = gaussian_moments("gelu", -9.0, 2.0)
    torch.testing.assert_close(moments.value_squared[1, 2], alone.value_squared, rtol=1e-14, atol=0)
    assert gaussian_moments("relu", std=math.sqrt(3)).value_squared.item() == pytest.approx(1.5, rel=1e-14)


def test_a_module_counts_as_it_is_now_and_is_left_alone():
    prelu = nn.PReLU(init=0.25).train()
    with torch.no_grad():
        prelu.weight.fill_(0.5)
    assert gaussian_moments(prelu).value_squared.item() == pytest.approx((1 + 0.25) / 2, rel=1e-12)
    assert gaussian_moments(prelu).kink.item() == pytest.approx(0.5 / math.sqrt(2 * math.pi), rel=1e-6)
    assert (prelu.training, prelu.weight.dtype) == (True, torch.float32)
    assert gaussian_moments("prelu").value_squared.item() == pytest.approx((1 + 0.0625) / 2, rel=1e-12)


def test_what_was_never_registered_is_integrated_through_its_kinks():
    """|x|: E f^2 = 1, E f' = 0, E f'^2 = 1; min(x^2, 1) has a kink that nobody declared."""
    moments = gaussian_moments(torch.abs)
    assert moments.value_squared.item() == pytest.approx(1, rel=1e-12)
    assert moments.value.item() == pytest.approx(math.sqrt(2 / math.pi), rel=1e-12)
    clipped = gaussian_moments(lambda x: torch.clamp(x**2, max=1.0))
    with mpmath.workdps(20):
        exact = 2 * (mpmath.quad(lambda x: x**2 * mpmath.npdf(x), [0, 1]) + mpmath.ncdf(-1))
    assert clipped.value.item() == pytest.approx(float(exact), abs=1e-12)


def test_an_override_of_a_name_is_not_mistaken_for_the_activation_of_that_name():
    registry = ActivationRegistry()
    registry.register("relu", override=True)(nn.Tanh)
    assert gaussian_moments("relu", registry=registry).value_squared.item() == pytest.approx(0.39429449, abs=5e-9)


def test_what_has_no_moments_is_refused():
    for mean, std in ((0.0, 0.0), (0.0, -1.0), (math.nan, 1.0), (0.0, math.inf)):
        with pytest.raises(ArgumentError):
            gaussian_moments("gelu", mean, std)
    module = nn.PReLU(3)
    with torch.no_grad():
        module.weight[0] = 0.5
    for activation in (torch.log, lambda x: x * torch.rand_like(x), module):
        with pytest.raises(ArgumentError):
            gaussian_moments(activation)


@pytest.mark.parametrize("slope", [3.0, 1e4, 777777.0])
def test_steep_pieces_keep_their_digits(slope):
    """clip(k x, -1, 1): with P = P(|x| < 1 / k), E f^2 = 1 - P + k^2 E[x^2; |x| < 1 / k] and E f'^2 = k^2 P."""
    registry = ActivationRegistry()
    facts = activations.ActivationFacts(kinks=((-1 / slope, slope), (1 / slope, -slope)))
    registry.register("clip", facts=facts)(lambda x: (slope * x).clamp(-1, 1))
    with mpmath.workdps(40):
        k = mpmath.mpf(slope)
        inside = mpmath.erf(1 / k / mpmath.sqrt(2))
        squared = 1 - inside + k**2 * (inside - 2 / k * mpmath.npdf(1 / k))
        slope_squared, kink = k**2 * inside, 2 * k * mpmath.npdf(1 / k)
    moments = gaussian_moments("clip", registry=registry)
    assert moments.value_squared.item() == pytest.approx(float(squared), rel=1e-12)
    assert moments.derivative_squared.item() == pytest.approx(float(slope_squared), rel=1e-11)
    assert moments.kink.item() == pytest.approx(float(kink), rel=1e-12)


@pytest.mark.parametrize("std", [1.0, 1e-3])
def test_the_variance_of_a_square_far_from_0(std):
    """x^2 for x ~ N(m, s^2) has variance 4 m^2 s^2 + 2 s^4."""
    mean = 1e6 * std
    variance = gaussian_moments("relu2", mean, std).variance.item()
    assert variance == pytest.approx(4 * mean**2 * std**2 + 2 * std**4, rel=1e-10)


@pytest.mark.parametrize("std", [1.0, 1e4])
def test_what_happens_about_zero_is_not_overlooked(std):
    """A gate of width 1e-4, at a deviation up to 1e8 times as large: E|f''| of a steep Swish is a kink's density."""
    moments, relu = gaussian_moments("swish(beta=1e4)", std=std), gaussian_moments("relu", std=std)
    assert moments.value_squared.item() == pytest.approx(relu.value_squared.item(), rel=1e-8)
    # |f''| of x sigmoid(x) integrates to 4 max f' - 2 - ... = 1.199679: up to the largest slope and back on both sides.
    total = 4 * 1.0998393201288669 - 3
    assert moments.abs_second_derivative.item() == pytest.approx(total * relu.kink.item(), rel=1e-6)


def _expectation(function, mean=0.0, std=1.0):
    x, weights = normal_rule(lambda x: function(x)[None], mean, std)
    return (weights * function(x)).sum().item()


@pytest.mark.parametrize("std", [1e-8, 1.0, 1e6])
@pytest.mark.parametrize("power", [0, 2, 8])
def test_powers(power, std):
    double_factorial = math.prod(range(1, power, 2))
    assert _expectation(lambda x: (x / std) ** power, 0.0, std) == pytest.approx(double_factorial, rel=1e-13)


def test_an_exponential_lives_far_from_the_mean():
    """E exp(8 x) = exp(32): its mass is 8 standard deviations out."""
    assert _expectation(lambda x: torch.exp(8 * x)) == pytest.approx(math.exp(32), rel=1e-12)


@pytest.mark.parametrize("place", [-2.7182, 0.0, 1.234567])
def test_jumps_need_not_be_declared(place):
    share = _expectation(lambda x: (x > place).double(), std=1.5)
    assert share == pytest.approx(float(mpmath.ncdf(-place / 1.5)), abs=1e-12)


def test_noise_is_put_up_with():
    single = _expectation(lambda x: nn.functional.silu(x.float()).double() ** 2)
    assert single == pytest.approx(gaussian_moments("silu").value_squared.item(), rel=1e-6)
