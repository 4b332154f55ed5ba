"""What is predicted for normal inputs, against the moments of `gaussian`, scipy's quadrature and constants."""

import itertools
import math

import pytest
import torch
from scipy import integrate, stats

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
