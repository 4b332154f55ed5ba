"""Moments over normal pre-activations against mpmath, published constants and the relations that hold between them."""

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

# E f, E f^2, E f'^2, the smooth part of E|f''| and the kinks' part, at N(0, 1), to eight digits.
PUBLISHED = {
    "gelu": (0.28209479, 0.42522148, 0.45585087, 0.44555831, 0),
    "gelu_tanh": (0.28203859, 0.42519371, 0.45581785, 0.44536123, 0),
    "gelu_sigmoid": (0.28233055, 0.42195281, 0.44954920, 0.42889389, 0),
    "silu": (0.20662096, 0.35577552, 0.37948235, 0.35145571, 0),
    "swish(beta=1.5)": (0.26509159, 0.40688527, 0.43440430, 0.41279623, 0),
    "swish(beta=2.0)": (0.30285275, 0.43947247, 0.46642505, 0.44783120, 0),
    "mish": (0.24040389, 0.45234219, 0.47908376, 0.38836028, 0),
    "elu": (0.16052057, 0.64494542, 0.66810200, 0.26157829, 0),
    "elu(alpha=0.5)": (0.27973143, 0.53623635, 0.54202550, 0.13078915, 0.199471),
    "selu": (0, 1, 1.07157499, 0.45988062, 0.282211),
    "hard_swish": (0.16621670, 0.33156738, 0.35853152, 0.33243340, 0.004432),
    "relu": (0.39894228, 0.5, 0.5, 0, 0.398942),
    "leaky_relu(negative_slope=0.2)": (0.31915382, 0.52, 0.52, 0, 0.319154),
    "softplus": (0.80605918, 0.92124591, 0.29337904, 0.20662096, 0),
    "tanh": (0, 0.39429449, 0.46440290, 0.49645214, 0),
}
POWERS = tuple(sign * 2.0**-k for k in range(8) for sign in (-1, 1))  # for a function with a steep place at 0


@pytest.mark.parametrize("spec", PUBLISHED)
def test_published_constants(spec):
    moments = gaussian_moments(spec)
    value, squared, slope_squared, bend, kink = PUBLISHED[spec]
    assert moments.value.item() == pytest.approx(value, abs=5e-9)
    assert moments.value_squared.item() == pytest.approx(squared, abs=5e-9)
    assert moments.derivative_squared.item() == pytest.approx(slope_squared, abs=5e-9)
    assert moments.abs_second_derivative.item() == pytest.approx(bend, abs=5e-9)
    assert moments.kink.item() == pytest.approx(kink, abs=5e-7)


@pytest.mark.parametrize("std", [1e-3, 0.3, 1.0, 2.0, 50.0])
def test_gelu_of_mean_zero_in_closed_form(std):
    s2 = std * std
    q2, r = 1 + s2, math.sqrt(1 + 2 * s2)
    moments = gaussian_moments("gelu", std=std)
    squared = s2 / 4 + s2 / (2 * math.pi) * math.asin(s2 / q2) + s2 * s2 / (math.pi * r * q2)
    slope = 0.25 + math.asin(s2 / q2) / (2 * math.pi) + s2 / (math.pi * q2 * r) + s2 / (2 * math.pi * r**3)
    assert moments.value_squared.item() == pytest.approx(squared, rel=1e-13)
    assert moments.derivative_squared.item() == pytest.approx(slope, rel=1e-13)


@pytest.mark.parametrize(
    ("spec", "mean", "std", "breaks"),
    [
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


@pytest.mark.parametrize("spec", ["gelu", "elu(alpha=0.3)", "hard_swish", "gaussian_gelu(mu=0.6, sigma=2.5)", "selu"])
def test_the_derivatives_of_expectations_are_expectations_of_derivatives(spec):
    """d E f / dm = E f', and d E f / d(s^2) = E f'' / 2 = d E f' / dm / 2, kinks included."""
    mean, std, step = 0.4, 0.8, 1e-4
    above, below = gaussian_moments(spec, mean + step, std), gaussian_moments(spec, mean - step, std)
    by_mean = (above.value - below.value).item() / (2 * step)
    assert by_mean == pytest.approx(gaussian_moments(spec, mean, std).derivative.item(), abs=2e-8)
    wide, narrow = (gaussian_moments(spec, mean, math.sqrt(std**2 + sign * step)) for sign in (1, -1))
    by_variance = (wide.value - narrow.value).item() / (2 * step)
    assert by_variance == pytest.approx((above.derivative - below.derivative).item() / (4 * step), abs=2e-8)


@pytest.mark.parametrize("spec", ["relu", "hard_swish", "elu(alpha=0.5)", "selu"])
def test_kinks_carry_the_rest_of_the_second_derivative(spec):
    """E f'' = d E f' / dm counts the jumps of f' too: with signs, smooth part plus kinks."""
    mean, std, step = 0.3, 1.2, 1e-4
    above, below = (gaussian_moments(spec, mean + sign * step, std).derivative.item() for sign in (1, -1))
    jumps = sum(jump * mpmath.npdf(place, mean, std) for place, jump in activations.info(spec).kinks)
    smooth = gaussian_moments(spec, mean, std).abs_second_derivative.item()  # f'' >= 0 within every piece of these
    assert (above - below) / (2 * step) == pytest.approx(float(smooth + jumps), abs=2e-8)


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
