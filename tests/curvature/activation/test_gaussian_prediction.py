"""What is predicted for normal inputs, against the moments of `gaussian`, scipy's quadrature and constants."""

import math

import pytest
import torch
from scipy import integrate, stats

from lit_gelu.activations import registry
from lit_gelu.activations.gaussian import gaussian_moments
from lit_gelu.curvature import activation_statistics
from lit_gelu.curvature.activation.gaussian_prediction import PREDICTED, GaussianPrediction

NAMES = ["gelu", "gelu_tanh", "silu", "mish", "relu", "elu(alpha=0.5)", "hard_swish", "softplus", "log_sigmoid"]
MEAN = torch.tensor([0.0, 0.0, -2.0, 1.5, -3.0, 4.0, 0.3], dtype=torch.float64)
STD = torch.tensor([0.05, 10.0, 0.3, 3.0, 1.0, 0.5, 1.0], dtype=torch.float64)


def predicted(spec, mean, std):
    mean, std = (torch.as_tensor(part, dtype=torch.float64).reshape(-1) for part in (mean, std))
    table = GaussianPrediction(registry.create(spec), registry)(mean, std)
    return dict(zip(PREDICTED, table.T, strict=True))


@pytest.mark.parametrize("spec", ["gelu", "relu", "elu(alpha=0.5)", "hard_swish"])
def test_expectations_equal_the_closed_forms(spec):
    figures, exact = predicted(spec, MEAN, STD), gaussian_moments(spec, MEAN, STD)
    size = 1 + MEAN**2 + STD**2
    for name, field in (
        ("mean_output", "value"),
        ("mean_squared_output", "value_squared"),
        ("mean_derivative", "derivative"),
        ("mean_squared_derivative", "derivative_squared"),
        ("mean_abs_second_derivative", "abs_second_derivative"),
        ("kink_mass", "kink"),
    ):
        assert ((figures[name] - getattr(exact, field)).abs() <= 1e-10 * size).all(), name


@pytest.mark.parametrize("spec", NAMES)
def test_every_figure_is_that_of_a_sample_of_quantiles(spec):
    mean, std = 0.3, 1.7
    x = mean + std * torch.special.ndtri((torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000)
    figures, measured = predicted(spec, mean, std), activation_statistics(spec, x)
    for name, value in figures.items():
        if not math.isnan(measured[name]):
            tolerance = 0.02 * measured[name] if name == "kink_mass" else 1e-5
            assert value.item() == pytest.approx(measured[name], abs=tolerance + 1e-12), name


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


SECOND = {"elu": lambda x: math.exp(x) * (x < 0), "relu2": lambda x: 2.0 * (x > 0)}  # they jump at 0, and f' does not


@pytest.mark.parametrize("spec", SECOND)
@pytest.mark.parametrize(("mean", "std"), [(-2.0, 3.0), (0.2, 1.0)])
def test_where_the_second_derivative_jumps(spec, mean, std):
    def integrand(x):
        return SECOND[spec](x) * stats.norm.pdf(x, mean, std)

    exact = sum(integrate.quad(integrand, *ends)[0] for ends in ((-30, 0), (0, 30)))
    assert predicted(spec, mean, std)["mean_abs_second_derivative"].item() == pytest.approx(exact, rel=1e-7)
