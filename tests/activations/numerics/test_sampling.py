"""Facts at every scale: what a change of scale does to an activation is known exactly."""

import math

import mpmath
import pytest
import torch

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry

SILU_TURN = float(-1 - mpmath.lambertw(mpmath.exp(-1)))
SCALES = [1e-9, 1e-4, 1e-2, 0.3, 1.0, 7.0, 1e3, 1e6, 1e9]


@pytest.mark.parametrize("beta", SCALES)
def test_swish_at_every_scale(beta):
    info = activations.info(f"swish(beta={beta})")
    assert info.minimum == pytest.approx((SILU_TURN / beta, (SILU_TURN + 1) / beta), rel=1e-12)
    assert info.inflections == pytest.approx((-2.399357280515468 / beta, 2.399357280515468 / beta), rel=1e-10)
    assert info.lipschitz == pytest.approx(1.099839320128867, rel=1e-12)
    assert info.range == (info.minimum[1], math.inf)
    assert (info.left_asymptote, info.right_asymptote) == ((0.0, 0.0), (1.0, 0.0))


@pytest.mark.parametrize("sigma", SCALES)
def test_gaussian_gelu_at_every_scale(sigma):
    info = activations.info(f"gaussian_gelu(sigma={sigma})")
    assert info.minimum == pytest.approx((-0.7517915246935645 * sigma, -0.1699712074799037 * sigma), rel=1e-12)
    assert info.inflections == pytest.approx((-math.sqrt(2) * sigma, math.sqrt(2) * sigma), rel=1e-10)
    assert info.lipschitz == pytest.approx(1.128904145185155, rel=1e-12)


@pytest.mark.parametrize("sigma", [1e-6, 1e-2, 1.0, 1e5])
@pytest.mark.parametrize("c", [-1.0, 1.0])
def test_gaussian_gelu_with_a_mean_at_every_scale(sigma, c):
    """With c = mu / sigma, f'' = 0 at u = (-c +- sqrt(c^2 + 8)) / 2 with u = (x - mu) / sigma."""
    info = activations.info(f"gaussian_gelu(mu={c * sigma}, sigma={sigma})")
    bends = sorted(sigma * (c + (-c + sign * math.sqrt(c * c + 8)) / 2) for sign in (-1, 1))
    assert info.inflections == pytest.approx(bends, rel=1e-9)
    place, value = {-1.0: (-1.13173599, -0.50656113), 1.0: (-0.51290922, -0.03341673)}[c]
    assert info.minimum == pytest.approx((place * sigma, value * sigma), rel=1e-6)


@pytest.mark.parametrize(("mu", "sigma"), [(3.0001, 1e-7), (-2.5, 1e-5), (1e4, 1.0), (-123456.789, 0.01)])
def test_a_narrow_gate_far_from_zero_is_found(mu, sigma):
    """Seen only through the points that are added where f' changes too much."""
    info = activations.info(f"gaussian_gelu(mu={mu}, sigma={sigma})")
    c = mu / sigma
    u = -4 / (c + math.copysign(math.sqrt(c * c + 8), c)) * -1  # the root of u^2 + c u - 2 without cancellation
    assert any(x == pytest.approx(mu + sigma * u, rel=1e-12) for x in info.inflections)
    steepest = 0.5 + abs(c) / math.sqrt(2 * math.pi) if mu > 0 else abs(c) / math.sqrt(2 * math.pi) - 0.5
    assert info.lipschitz == pytest.approx(steepest, rel=1e-3)


def test_what_oscillates_is_judged_within_forty():
    registry = ActivationRegistry()
    registry.register("snake")(lambda x: x + torch.sin(x) ** 2)
    info = registry.info("snake")
    expected = [(k + 0.5) * math.pi / 2 for k in range(-26, 26) if abs((k + 0.5) * math.pi / 2) < 40]
    assert info.inflections == pytest.approx(expected, abs=1e-10)
    assert info.lipschitz == pytest.approx(2.0)
    assert info.range == (-math.inf, math.inf)
