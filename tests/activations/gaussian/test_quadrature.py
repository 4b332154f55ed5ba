"""The adaptive rule: smooth, kinked, steep and broken integrands."""

import math

import mpmath
import pytest
import torch
from torch import nn

from lit_gelu.activations.errors import NoGaussianMomentsError
from lit_gelu.activations.gaussian import gaussian_moments, normal_rule


def _expectation(function, mean=0.0, std=1.0, breaks=()):
    x, weights = normal_rule(lambda x: function(x)[None], mean, std, breaks)
    return (weights * function(x)).sum().item()


@pytest.mark.parametrize("std", [1e-8, 1e-2, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("power", [0, 2, 4, 8])
def test_powers(power, std):
    double_factorial = math.prod(range(1, power, 2))
    assert _expectation(lambda x: (x / std) ** power, 0.0, std) == pytest.approx(double_factorial, rel=1e-13)


def test_an_exponential_lives_far_from_the_mean():
    """E exp(8 x) = exp(32): its mass is 8 standard deviations out."""
    assert _expectation(lambda x: torch.exp(8 * x)) == pytest.approx(math.exp(32), rel=1e-12)


@pytest.mark.parametrize("place", [-2.7182, 0.0, 1.234567])
def test_jumps_need_not_be_declared(place):
    found = _expectation(lambda x: (x > place).double(), std=1.5)
    assert found == pytest.approx(float(mpmath.ncdf(-place / 1.5)), abs=1e-12)


@pytest.mark.parametrize("std", [1.0, 1e4])
def test_what_happens_about_zero_is_not_overlooked(std):
    """A gate of width 1e-4, at a deviation up to 1e8 times as large: E|f''| of a steep Swish is a kink's density."""
    moments = gaussian_moments("swish(beta=1e4)", std=std)
    relu = gaussian_moments("relu", std=std)
    assert moments.value_squared.item() == pytest.approx(relu.value_squared.item(), rel=1e-8)
    # |f''| of x sigmoid(x) integrates to 4 max f' - 2 - ... = 1.199679: up to the largest slope and back on both sides.
    total = 4 * 1.0998393201288669 - 3
    assert moments.abs_second_derivative.item() == pytest.approx(total * relu.kink.item(), rel=1e-6)


def test_noise_is_put_up_with_and_randomness_is_not():
    class SingleSiLU(nn.Module):
        def forward(self, x):
            return nn.functional.silu(x.float()).double()

    found = _expectation(lambda x: SingleSiLU()(x) ** 2)
    assert found == pytest.approx(gaussian_moments("silu").value_squared.item(), rel=1e-6)
    with pytest.raises(NoGaussianMomentsError):
        _expectation(lambda x: torch.rand_like(x))


def test_refuses_what_is_not_finite():
    with pytest.raises(NoGaussianMomentsError):
        _expectation(lambda x: torch.sqrt(x))
