"""Moments over normal pre-activations against mpmath, published constants and the relations that hold between them."""

import math

import mpmath
import pytest
import torch
from gaussian_oracle import FIELDS, case_of, exact_moments, is_close
from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError, ActivationRegistry
from lit_gelu.activations.errors import NoGaussianMomentsError
from lit_gelu.activations.gaussian import GaussianMoments, gaussian_moments, quadrature_moments, scalar_function
from lit_gelu.activations.numerics.piecewise import INF, LINE, Piece, PiecewiseMoments, Term

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
CLOSED = ("gelu", "elu(alpha=0.3)", "hard_swish", "gaussian_gelu(mu=0.6, sigma=2.5)", "relu", "selu", "relu6")
GRID = ((0.0, 0.05), (0.0, 10.0), (-2.0, 0.3), (1.5, 3.0), (4.0, 0.5), (-3.0, 1.0))
BEYOND_THE_REACH_OF_CLOSED_FORMS = ((0.0, 1e-5), (-8.0, 0.5), (5.0, 1e-3))


@pytest.mark.parametrize("spec", PUBLISHED)
def test_published_constants(spec):
    moments = gaussian_moments(spec)
    value, squared, slope_squared, bend, kink = PUBLISHED[spec]
    assert moments.value.item() == pytest.approx(value, abs=5e-9)
    assert moments.value_squared.item() == pytest.approx(squared, abs=5e-9)
    assert moments.derivative_squared.item() == pytest.approx(slope_squared, abs=5e-9)
    assert moments.abs_second_derivative.item() == pytest.approx(bend, abs=5e-9)
    assert moments.kink.item() == pytest.approx(kink, abs=5e-7)


def test_gelu_at_the_standard_normal_in_closed_form():
    moments = gaussian_moments("gelu")
    assert moments.value_squared.item() == pytest.approx(1 / 3 + 1 / (2 * math.pi * math.sqrt(3)), abs=1e-15)
    assert moments.derivative_squared.item() == pytest.approx(1 / 3 + 2 / (3 * math.sqrt(3) * math.pi), abs=1e-15)
    assert moments.value.item() == pytest.approx(1 / (2 * math.sqrt(math.pi)), abs=1e-15)
    assert moments.derivative.item() == pytest.approx(0.5, abs=1e-15)


@pytest.mark.parametrize("std", [1e-3, 0.3, 2.0, 50.0])
def test_gelu_of_mean_zero_in_closed_form(std):
    s2 = std * std
    q2, r = 1 + s2, math.sqrt(1 + 2 * s2)
    moments = gaussian_moments("gelu", std=std)
    squared = s2 / 4 + s2 / (2 * math.pi) * math.asin(s2 / q2) + s2 * s2 / (math.pi * r * q2)
    slope = 0.25 + math.asin(s2 / q2) / (2 * math.pi) + s2 / (math.pi * q2 * r) + s2 / (2 * math.pi * r**3)
    assert moments.value_squared.item() == pytest.approx(squared, rel=1e-13)
    assert moments.derivative_squared.item() == pytest.approx(slope, rel=1e-13)


POWERS = tuple(sign * 2.0**-k for k in range(8) for sign in (-1, 1))  # for a function with a steep place at 0


def _assert_exact(spec, mean, std, breaks=()):
    facts = activations.info(spec)
    places = [*breaks, *facts.inflections, *(place for place, _ in facts.kinks)]
    moments, exact = gaussian_moments(spec, mean, std), exact_moments(case_of(spec), mean, std, places)
    size = 1 + abs(mean) + std
    for field in FIELDS:
        positive = field in {"value_squared", "variance", "derivative_squared"}
        found = getattr(moments, field).item()
        absolute = 1e-30 if positive else 2e-14 * size
        assert is_close(found, exact[field], 1e-11, absolute), (field, found, exact[field])


@pytest.mark.parametrize(("mean", "std"), GRID[1:3] + BEYOND_THE_REACH_OF_CLOSED_FORMS[:2])
@pytest.mark.parametrize("spec", [*CLOSED[:3], *(pytest.param(spec, marks=pytest.mark.full) for spec in CLOSED[3:])])
def test_closed_forms_against_mpmath(spec, mean, std):
    _assert_exact(spec, mean, std)


@pytest.mark.parametrize(
    ("spec", "mean", "std"),
    [
        ("silu", 1.0, 10.0),
        ("gelu_tanh", -2.0, 3.0),
        ("mish", 4.0, 0.5),
        ("tanh", 0.0, 0.01),
        ("swish(beta=50.0)", 0.2, 1.0),
        ("cdf_linear(distribution='laplace')", 0.4, 2.0),
    ],
)
def test_quadrature_against_mpmath(spec, mean, std):
    _assert_exact(spec, mean, std, POWERS)


@pytest.mark.parametrize("spec", [*CLOSED, "silu", "mish"])
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
    info = activations.info(spec)
    jumps = sum(jump * mpmath.npdf(place, mean, std) for place, jump in info.kinks)
    smooth = gaussian_moments(spec, mean, std).abs_second_derivative.item()  # f'' >= 0 within every piece of these
    assert (above - below) / (2 * step) == pytest.approx(float(smooth + jumps), abs=2e-8)


@pytest.mark.parametrize("spec", ["gelu", "gaussian_gelu(mu=-1.0, sigma=0.5)", "relu", "celu(alpha=2.0)", "hard_swish"])
def test_closed_forms_and_quadrature_agree_everywhere(spec):
    mean = torch.tensor([-20.0, -5.0, -1.0, 0.0, 0.3, 3.0], dtype=torch.float64)[:, None]
    std = torch.tensor([1e-6, 1e-2, 0.2, 1.0, 5.0, 100.0], dtype=torch.float64)
    module, kinks = scalar_function(spec)
    closed, quadrature = gaussian_moments(spec, mean, std), quadrature_moments(module, mean, std, kinks)
    for field in ("value_squared", "variance", "derivative_squared"):
        torch.testing.assert_close(getattr(closed, field), getattr(quadrature, field), rtol=2e-11, atol=1e-300)
    for field in ("value", "derivative", "abs_second_derivative", "kink"):
        torch.testing.assert_close(getattr(closed, field), getattr(quadrature, field), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gelu", "silu", "elu", "softplus", "hard_swish"])
def test_a_vanishing_deviation_leaves_the_values_at_the_mean(name):
    for mean in (-1.3, 0.0, 0.7):
        moments = gaussian_moments(name, mean, 1e-9)
        at_mean = [
            activations.functional.derivative(name, torch.tensor(mean, dtype=torch.float64), order) for order in (0, 1)
        ]
        assert moments.value.item() == pytest.approx(at_mean[0].item(), abs=1e-9)
        assert moments.derivative_squared.item() == pytest.approx(at_mean[1].item() ** 2, abs=1e-8)


@pytest.mark.parametrize("std", [1.0, 10.0])
def test_a_corner_of_the_second_derivative_next_to_a_whole_number(std):
    """f'' of x Phi((x - 5) / 0.01) passes through 0 at 5.00008, next to where a panel ends."""
    spec = "gaussian_gelu(mu=5.0, sigma=0.01)"
    module, _ = scalar_function(spec)
    m, s = (torch.tensor(part, dtype=torch.float64) for part in (0.0, std))
    corner = 5 + 0.01 * (-500 + math.sqrt(500**2 + 8)) / 2
    breaks = [corner, *(5 + 0.01 * k for k in range(-14, 15))]
    exact = exact_moments(case_of(spec), 0.0, std, breaks)["abs_second_derivative"]
    assert is_close(quadrature_moments(module, m, s).abs_second_derivative.item(), exact, 1e-11)


@pytest.mark.parametrize(
    "spec", ["gaussian_gelu(mu=5.0, sigma=0.01)", "celu(alpha=0.01)", "celu(alpha=50.0)", "elu(alpha=1000.0)"]
)
def test_closed_forms_of_steep_and_large_activations(spec):
    mean = torch.tensor([-6.0, 0.0, 0.7, 6.0], dtype=torch.float64)[:, None]
    std = torch.tensor([1e-6, 1e-3, 0.1, 1.0, 10.0, 1e4], dtype=torch.float64)
    module, kinks = scalar_function(spec)
    closed, quadrature = gaussian_moments(spec, mean, std), quadrature_moments(module, mean, std, kinks)
    for field in ("value_squared", "variance", "derivative_squared"):
        torch.testing.assert_close(getattr(closed, field), getattr(quadrature, field), rtol=1e-11, atol=1e-290)


def test_shapes_broadcast_and_every_element_is_that_of_its_own_mean_and_deviation():
    mean, std = torch.tensor([[0.0], [-9.0]]), torch.tensor([0.5, 1.0, 2.0])
    moments = gaussian_moments("gelu", mean, std)
    for field in moments.fields:
        assert field.shape == (2, 3)
        assert field.dtype == torch.float64
    alone = gaussian_moments("gelu", -9.0, 2.0)
    torch.testing.assert_close(moments.value_squared[1, 2], alone.value_squared, rtol=1e-14, atol=0)


def test_numbers_are_not_rounded_to_float32():
    assert gaussian_moments("relu", std=math.sqrt(3)).value_squared.item() == pytest.approx(1.5, rel=1e-14)


def test_a_module_counts_as_it_is_now_and_is_left_alone():
    prelu = nn.PReLU(init=0.25).train()
    with torch.no_grad():
        prelu.weight.fill_(0.5)
    assert gaussian_moments(prelu).value_squared.item() == pytest.approx((1 + 0.25) / 2, rel=1e-12)
    assert prelu.training
    assert prelu.weight.dtype == torch.float32
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


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.0), (0.0, -1.0), (math.nan, 1.0), (0.0, math.inf)])
def test_refuses_what_is_no_normal_distribution(mean, std):
    with pytest.raises(ActivationArgumentError):
        gaussian_moments("gelu", mean, std)


def test_refuses_what_has_no_moments():
    with pytest.raises(NoGaussianMomentsError):
        gaussian_moments(torch.log)
    with pytest.raises(NoGaussianMomentsError):
        gaussian_moments(lambda x: x * torch.rand_like(x))
    module = nn.PReLU(3)
    with torch.no_grad():
        module.weight[0] = 0.5
    with pytest.raises(ActivationArgumentError):
        gaussian_moments(module)


def test_the_identity_keeps_mean_and_variance():
    mean, std = torch.tensor([0.0, -2.0, 3.0], dtype=torch.float64), torch.tensor([1.0, 0.5, 4.0], dtype=torch.float64)
    found = gaussian_moments("identity", mean, std)
    wanted = {"value": mean, "value_squared": mean**2 + std**2, "variance": std**2}
    wanted |= {"derivative": torch.ones(3), "derivative_squared": torch.ones(3)}
    wanted |= {"abs_second_derivative": torch.zeros(3), "kink": torch.zeros(3)}
    for name, value in wanted.items():
        torch.testing.assert_close(getattr(found, name), value.double(), rtol=1e-14, atol=1e-14)


def test_closed_moments_of_a_user_and_quadrature_where_they_are_nan():
    """x^3 for x ~ N(0, s^2): E f = 0, E f^2 = 15 s^6, E f'^2 = 27 s^4, E |f''| = 6 s sqrt(2 / pi)."""
    asked = []

    def cube(x, scale=1.0):
        return scale * x**3

    def moments(mean, std, scale=1.0):
        asked.append(scale)
        square = torch.where(std < 2, 15 * scale**2 * std**6, torch.nan)
        return GaussianMoments(
            value=0 * std,
            value_squared=square,
            variance=square,
            derivative=3 * scale * std**2,
            derivative_squared=27 * scale**2 * std**4,
            abs_second_derivative=6 * scale * std * math.sqrt(2 / math.pi),
            kink=0 * std,
        )

    with activations.registry.scope():
        activations.register("cube", moments=moments)(cube)
        found = gaussian_moments("cube(scale=2)", 0.0, torch.tensor([1.0, 3.0]))
    assert asked == [2]
    assert found.value_squared.tolist() == pytest.approx([60.0, 43740.0], rel=1e-11)
    assert found.value_squared[0].item() == 60.0
    assert found.abs_second_derivative[1].item() == pytest.approx(36 * math.sqrt(2 / math.pi), rel=1e-9)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 2.0)])
def test_pieces_whose_second_derivative_changes_its_sign(mean, std):
    """x - x^3 / 27 within +-3 has f'' = -2 x / 9; x^2 - x^3 within 0 and 1 has f'' = 2 - 6 x, whose terms differ."""

    def size_of(bend, places):
        return mpmath.quad(lambda x: abs(bend(x)) * mpmath.npdf(x, mean, std), places)

    registry = ActivationRegistry()
    pieces = (Piece(-INF, -3, (Term(-2),)), Piece(-3, 3, (*LINE, Term(-1 / 27, 3))), Piece(3, INF, (Term(2),)))
    registry.register("odd", moments=PiecewiseMoments(pieces))(lambda x: x.clamp(-3, 3) - x.clamp(-3, 3) ** 3 / 27)
    pieces = (Piece(-INF, 0), Piece(0, 1, (Term(1, 2), Term(-1, 3))), Piece(1, INF))
    registry.register("hump", moments=PiecewiseMoments(pieces))(lambda x: x.clamp(0, 1) ** 2 - x.clamp(0, 1) ** 3)
    odd, hump = (gaussian_moments(name, mean, std, registry=registry) for name in ("odd", "hump"))
    assert odd.abs_second_derivative.item() == pytest.approx(float(size_of(lambda x: 2 * x / 9, [-3, 0, 3])), rel=1e-11)
    third = mpmath.mpf(1) / 3
    assert hump.abs_second_derivative.item() == pytest.approx(
        float(size_of(lambda x: 2 - 6 * x, [0, third, 1])), rel=1e-11
    )
    assert hump.kink.item() == pytest.approx(float(mpmath.npdf(1, mean, std)), rel=1e-12)  # stated by its pieces alone


@pytest.mark.parametrize("slope", [3.0, 1e4, 777777.0, 1e7])
def test_steep_pieces_keep_their_digits(slope):
    """clip(k x, -1, 1): with P = P(|x| < 1 / k), E f^2 = 1 - P + k^2 E[x^2; |x| < 1 / k] and E f'^2 = k^2 P."""
    registry, end = ActivationRegistry(), 1 / slope
    pieces = (Piece(-INF, -end, (Term(-1),)), Piece(-end, end, (Term(slope, 1),)), Piece(end, INF, (Term(1),)))
    registry.register("clip", moments=PiecewiseMoments(pieces))(lambda x: (slope * x).clamp(-1, 1))
    with mpmath.workdps(40):
        k = mpmath.mpf(slope)
        inside = mpmath.erf(1 / k / mpmath.sqrt(2))
        squared = 1 - inside + k**2 * (inside - 2 / k * mpmath.npdf(1 / k))
        slope_squared, kink = k**2 * inside, 2 * k * mpmath.npdf(1 / k)
    moments = gaussian_moments("clip", registry=registry)
    assert moments.value_squared.item() == pytest.approx(float(squared), rel=1e-13)
    assert moments.derivative_squared.item() == pytest.approx(float(slope_squared), rel=1e-11)
    assert moments.kink.item() == pytest.approx(float(kink), rel=1e-12)


@pytest.mark.parametrize("std", [1.0, 1e-3])
def test_the_variance_of_a_square_far_from_0(std):
    """x^2 for x ~ N(m, s^2) has variance 4 m^2 s^2 + 2 s^4."""
    mean = 1e6 * std
    found = gaussian_moments("relu2", mean, std).variance.item()
    assert found == pytest.approx(4 * mean**2 * std**2 + 2 * std**4, rel=1e-10)
