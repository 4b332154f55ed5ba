"""Owen's T and truncated moments against scipy and mpmath."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special

from lit_gelu.activations.numerics.normal import density, distribution, interval_moments, owens_t


def test_owens_t_against_scipy():
    h = torch.linspace(-40, 40, 161, dtype=torch.float64)[:, None]
    a = torch.linspace(0, 1, 21, dtype=torch.float64)
    np.testing.assert_allclose(owens_t(h, a).numpy(), special.owens_t(h.numpy(), a.numpy()), rtol=0, atol=2e-16)


def test_owens_t_against_scipy_in_relative_terms():
    h, a = torch.linspace(-6, 6, 49, dtype=torch.float64)[:, None], torch.linspace(0.05, 1, 20, dtype=torch.float64)
    np.testing.assert_allclose(owens_t(h, a).numpy(), special.owens_t(h.numpy(), a.numpy()), rtol=1e-13)


def test_density_and_distribution_reach_into_the_tail():
    x = torch.tensor([-37.0, -9.0, -1.0, 0.0, 3.0], dtype=torch.float64)
    with mpmath.workdps(30):
        exact = [(float(mpmath.npdf(v)), float(mpmath.ncdf(v))) for v in x.tolist()]
    np.testing.assert_allclose(density(x).numpy(), [e[0] for e in exact], rtol=1e-13)
    np.testing.assert_allclose(distribution(x).numpy(), [e[1] for e in exact], rtol=1e-13)


@pytest.mark.parametrize(
    ("low", "high", "rate"),
    [
        (-math.inf, math.inf, 0.0),
        (-math.inf, 0.0, 1.0),
        (-math.inf, 0.0, 2.0),
        (0.0, math.inf, -1.5),
        (-3.0, 3.0, 0.0),
        (2.0, math.inf, 0.0),
    ],
)
@pytest.mark.parametrize(("mean", "std"), [(-1.5, 0.4), (6.0, 1.0)])
def test_interval_moments_against_mpmath(low, high, rate, mean, std):
    m, s = (torch.tensor(part, dtype=torch.float64) for part in (mean, std))
    found = interval_moments(m, s, low, high, 4, rate)
    with mpmath.workdps(30):
        middle = mean + rate * std**2
        a, b = max(low, middle - 13 * std), min(high, middle + 13 * std)
        for power, moment in enumerate(found):
            edges = [a + (b - a) * mpmath.mpf(k) / 16 for k in range(17)] if a < b else [0, 0]
            integrand = lambda x, k=power: x**k * mpmath.exp(rate * x) * mpmath.npdf(x, mean, std)  # noqa: E731
            exact = mpmath.quad(integrand, edges, method="gauss-legendre")  # smooth: a third of the default's time
            size = (abs(middle) + std) ** power * mpmath.exp(rate * mean + (rate * std) ** 2 / 2)
            assert abs(moment.item() - exact) <= 1e-14 * size, power


def test_a_rate_that_would_overflow_alone():
    """e^x below -800 with a deviation of 40: e^(mean + std^2 / 2) would be e^800, the integral is tiny."""
    mean, std = torch.tensor(0.0, dtype=torch.float64), torch.tensor(40.0, dtype=torch.float64)
    found = interval_moments(mean, std, -math.inf, 0.0, 0, 1.0)[0].item()
    with mpmath.workdps(30):
        exact = mpmath.exp(800) * mpmath.ncdf(-40)
    assert found == pytest.approx(float(exact), rel=1e-12)
