"""What is predicted for normal inputs, against the moments of `gaussian`, scipy's quadrature and constants."""

import itertools
import math

import pytest
import torch
from scipy import integrate, special, stats

from lit_gelu.activations import registry
from lit_gelu.activations.functional import derivative
from lit_gelu.activations.gaussian import gaussian_moments
from lit_gelu.curvature import PREDICTED, GaussianPrediction, activation_statistics

NAMES = ["gelu", "gelu_tanh", "silu", "mish", "relu", "elu(alpha=0.5)", "hard_swish", "softplus", "log_sigmoid"]
MEAN = torch.tensor([0.0, 0.0, -2.0, 1.5, -3.0, 4.0, 0.3], dtype=torch.float64)
STD = torch.tensor([0.05, 10.0, 0.3, 3.0, 1.0, 0.5, 1.0], dtype=torch.float64)


def predicted(spec, mean, std):
    mean, std = (torch.as_tensor(part, dtype=torch.float64).reshape(-1) for part in (mean, std))
    table = GaussianPrediction(registry.create(spec), registry)(mean, std)
    return dict(zip(PREDICTED, table.T, strict=True))


@pytest.mark.parametrize("spec", ["gelu", "relu", "elu(alpha=0.5)", "hard_swish"])
def test_expectations_equal_the_closed_forms(spec):
    found, exact = predicted(spec, MEAN, STD), gaussian_moments(spec, MEAN, STD)
    size = 1 + MEAN**2 + STD**2
    for name, field in (
        ("mean_output", "value"),
        ("mean_squared_output", "value_squared"),
        ("mean_derivative", "derivative"),
        ("mean_squared_derivative", "derivative_squared"),
        ("mean_abs_second_derivative", "abs_second_derivative"),
        ("kink_mass", "kink"),
    ):
        assert ((found[name] - getattr(exact, field)).abs() <= 1e-10 * size).all(), name


@pytest.mark.one_in(3)
@pytest.mark.parametrize("spec", ["gelu_tanh", "silu", "mish", "softplus"])
@pytest.mark.parametrize(("mean", "std"), [(0.4, 0.7), (-1.0, 6.0)])
def test_expectations_and_shares_equal_scipys_quadrature(spec, mean, std):
    module = registry.create(spec).double()

    def at(x, order):
        return derivative(module, torch.tensor(x, dtype=torch.float64), order).item()

    def expectation(g):
        ends = [mean + std * k for k in range(-9, 10)]
        parts = [
            integrate.quad(lambda x: g(x) * stats.norm.pdf(x, mean, std), a, b, limit=200)[0]
            for a, b in itertools.pairwise(ends)
        ]
        return math.fsum(parts)

    found = {name: value.item() for name, value in predicted(spec, mean, std).items()}
    assert found["mean_squared_derivative"] == pytest.approx(expectation(lambda x: at(x, 1) ** 2), abs=1e-9)
    assert found["mean_abs_second_derivative"] == pytest.approx(expectation(lambda x: abs(at(x, 2))), abs=1e-7)
    if spec != "softplus":
        assert found["mean_gate"] == pytest.approx(expectation(lambda x: at(x, 0) / x), abs=1e-9)


SHIFTED = [
    ("gaussian_gelu(mu=30)", 30.0, 1.0),
    ("gaussian_gelu(mu=-2000)", -2000.0, 1.0),
    ("gaussian_gelu(sigma=50)", 0.0, 50.0),
    ("gaussian_gelu(mu=3, sigma=0.01)", 3.0, 0.01),
    ("gaussian_gelu", 0.0, 1.0),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("spec", "mu", "sigma"), SHIFTED)
@pytest.mark.parametrize(("mean", "std"), [(0.0, 100.0), (0.0, 1000.0), (25.0, 3.0), (-1990.0, 40.0), (0.1, 0.03)])
def test_panels_lie_where_the_activation_changes(spec, mu, sigma, mean, std):
    """scipy's rule of 60 nodes, in panels about the places where ``x Phi((x - mu) / sigma)`` and the density change."""
    found = {name: value.item() for name, value in predicted(spec, mean, std).items()}
    low, high = mean - 12 * std, mean + 12 * std
    marks = [mean + std * k for k in range(-12, 13)]
    marks += [*_inflections(mu, sigma), *(mu + sigma * k for k in (-40, -20, *range(-8, 9), 20, 40))]
    edges = sorted(x for x in marks if low <= x <= high)

    def expectation(g):
        def integrand(x):
            return g((x - mu) / sigma, x) * stats.norm.pdf(x, mean, std)

        return math.fsum(integrate.fixed_quad(integrand, a, b, n=60)[0] for a, b in itertools.pairwise(edges))

    def slope(u, x):
        return special.ndtr(u) + x / sigma * stats.norm.pdf(u)

    exact = {
        "mean_output": expectation(lambda u, x: x * special.ndtr(u)),
        "mean_derivative": expectation(slope),
        "mean_squared_derivative": expectation(lambda u, x: slope(u, x) ** 2),
        "mean_abs_second_derivative": expectation(lambda u, x: abs(stats.norm.pdf(u) / sigma * (2 - u * x / sigma))),
        "mean_gate": expectation(lambda u, _: special.ndtr(u)),
    }
    for name, value in exact.items():
        assert found[name] == pytest.approx(value, rel=1e-8, abs=1e-11 * (1 + std)), name


def _inflections(mu, sigma):
    """The roots of f'', where ``2 = u (mu + sigma u) / sigma``."""
    root = math.sqrt(mu**2 + 8 * sigma**2)
    return [mu + (-mu + sign * root) / 2 for sign in (-1, 1)]


def test_panels_follow_what_fades_as_a_power():
    """x times the Cauchy distribution function at a large deviation, by scipy in octaves."""
    found = {name: value.item() for name, value in predicted("cauchy_linear", 0.0, 1000.0).items()}
    ends = [0.0, *(2.0**k for k in range(-6, 14))]
    for name, g in (
        ("mean_gate", lambda x: stats.cauchy.cdf(x)),
        ("mean_squared_derivative", lambda x: (stats.cauchy.cdf(x) + x * stats.cauchy.pdf(x)) ** 2),
    ):
        exact = math.fsum(
            integrate.quad(lambda x, g=g: (g(x) + g(-x)) * stats.norm.pdf(x, 0, 1000), a, b, epsabs=1e-14)[0]
            for a, b in itertools.pairwise(ends)
        )
        assert found[name] == pytest.approx(exact, rel=1e-10), name


@pytest.mark.parametrize("spec", NAMES)
def test_every_figure_is_that_of_a_sample_of_quantiles(spec):
    mean, std = 0.3, 1.7
    x = mean + std * torch.special.ndtri((torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000)
    found, measured = predicted(spec, mean, std), activation_statistics(spec, x)
    for name, value in found.items():
        if not math.isnan(measured[name]):
            tolerance = 0.02 * measured[name] if name == "kink_mass" else 1e-5
            assert value.item() == pytest.approx(measured[name], abs=tolerance + 1e-12), name


@pytest.mark.parametrize(
    ("spec", "minimum"), [("gelu", -0.7517915246935645), ("silu", -1.278464542761074), ("mish", -1.1924312145155)]
)
def test_share_decreasing_is_the_normal_distribution_function_at_the_minimum(spec, minimum):
    found = predicted(spec, MEAN, STD)["share_decreasing"]
    expected = torch.special.ndtr((minimum - MEAN) / STD)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("spec", ["gelu", "gelu_tanh", "silu", "mish", "gaussian_gelu(mu=30)", "cauchy_linear", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_share_decreasing_counts_tails_in_which_the_slope_underflows(spec, dtype):
    """f' of GELU is 0 in float32 from -14 on, and in float64 from -39 on."""
    for mean, std in ((0.0, 10.0), (0.0, 1000.0), (-5.0, 300.0)):
        x = mean + std * torch.special.ndtri((torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000)
        measured = activation_statistics(spec, x.to(dtype))["share_decreasing"]
        assert measured == pytest.approx(predicted(spec, mean, std)["share_decreasing"].item(), abs=2e-5)
    if spec == "gelu":
        x = 10.0 * torch.special.ndtri((torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000)
        measured = activation_statistics(spec, x.to(dtype))["share_decreasing"]
        assert measured == pytest.approx(stats.norm.cdf(-0.07517915), abs=2e-5)


def test_published_places_where_gelu_saturates_and_is_linear():
    found = predicted("gelu", 0.0, 1.0)
    assert found["share_linear"].item() == pytest.approx(stats.norm.sf(3.0674) + _between("gelu"), rel=2e-4)
    assert found["share_saturated"].item() == pytest.approx(found["share_linear"].item(), rel=1e-12)


def _between(spec):
    """The share of the narrow stretch at which f' passes through 1 on its way to its maximum, by bisection."""
    module = registry.create(spec).double()
    x = torch.linspace(0.5, 1.5, 2_000_001, dtype=torch.float64)
    inside = x[(derivative(module, x, 1) - 1).abs() < 0.01]
    return stats.norm.cdf(inside[-1].item()) - stats.norm.cdf(inside[0].item())


def test_no_prediction_where_there_is_no_normal_distribution():
    found = predicted("gelu", [math.nan, 0.0, 1.0], [1.0, 0.0, 1.0])
    assert all(value[:2].isnan().all() for value in found.values())
    assert not found["mean_gate"][2].isnan()


@pytest.mark.parametrize("spec", ["gelu", "relu"])
def test_nodes_that_are_kept_serve_every_mean_and_deviation_near_by(spec):
    """One object along a path that crosses units in both directions and comes back, against the closed forms."""
    prediction = GaussianPrediction(registry.create(spec), registry)
    for scale in (1.0, 1.05, 0.71, 0.705, 1.42, 2.9, 0.1, 1.0):
        mean = scale * torch.tensor([0.0, 0.49, 0.51, -2.5, 7.3], dtype=torch.float64)
        std = scale * torch.tensor([1.0, 0.708, 1.41, 1.0, 1.4142], dtype=torch.float64)
        found, exact = prediction(mean, std), gaussian_moments(spec, mean, std)
        size = 1 + mean**2 + std**2
        for name, field in (
            ("mean_squared_output", "value_squared"),
            ("mean_squared_derivative", "derivative_squared"),
            ("mean_abs_second_derivative", "abs_second_derivative"),
        ):
            difference = found[:, PREDICTED.index(name)] - getattr(exact, field)
            assert (difference.abs() <= 1e-10 * size).all(), (name, scale)


def test_figures_do_not_depend_on_what_was_predicted_before():
    used, fresh = (GaussianPrediction(registry.create("silu"), registry) for _ in range(2))
    for scale in (3.0, 0.2, 1.3):
        used(scale * MEAN, scale * STD)
    assert torch.equal(used(MEAN, STD), fresh(MEAN, STD))
