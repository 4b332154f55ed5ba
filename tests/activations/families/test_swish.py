"""SiLU and Swish."""

import mpmath
import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional import silu, silu_derivative, swish, swish_derivative


class TestSilu(ActivationContract):
    cases = cases_of("silu")


class TestSwish(ActivationContract):
    cases = cases_of("swish")


def test_extrema_and_inflections():
    """The minimum is at -1 - W(1/e) with W Lambert's function, the inflections at x tanh(x / 2) = 2."""
    omega = float(mpmath.lambertw(mpmath.exp(-1)).real)
    inflection = float(mpmath.findroot(lambda x: x * mpmath.tanh(x / 2) - 2, 2.4))
    x = torch.tensor([-1 - omega, inflection, -inflection], dtype=torch.float64)
    assert x[0].item() == pytest.approx(-1.278464542761074, abs=1e-15)
    assert silu(x)[0].item() == pytest.approx(-omega, abs=1e-15)
    assert silu_derivative(x)[0].item() == pytest.approx(0.0, abs=1e-15)
    assert silu_derivative(x)[1].item() == pytest.approx(1.099839320128867, abs=1e-14)
    assert silu_derivative(x, order=2)[1:].abs().max().item() < 1e-15


def test_beta_scales_the_axis():
    x = torch.linspace(-20, 20, 401, dtype=torch.float64)
    for beta in (0.25, 2.0, 8.0):  # powers of two: no rounding
        assert torch.equal(swish(x, beta), silu(beta * x) / beta)
        assert torch.equal(swish_derivative(x, 1, beta), silu_derivative(beta * x))
        torch.testing.assert_close(
            swish_derivative(x, 2, beta), beta * silu_derivative(beta * x, 2), rtol=1e-15, atol=0
        )


def test_special_values_of_beta():
    x = torch.tensor([-torch.inf, -2.0, 0.0, 2.0, torch.inf])
    assert torch.equal(swish(x, 0.0), x / 2)
    assert torch.equal(swish(x, 1e30), x.relu())
    assert torch.equal(swish(x, torch.tensor(0.0)), x / 2)
    assert torch.equal(swish_derivative(x, 1, 0.0), torch.full_like(x, 0.5))


def test_beta_by_channel_and_its_gradient():
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    beta = torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64, requires_grad=True)
    for channel in range(3):
        torch.testing.assert_close(swish(x, beta)[:, channel], swish(x[:, channel], beta[channel].item()))
    assert torch.autograd.gradcheck(swish, (x, beta))
    assert torch.autograd.gradgradcheck(swish, (x, beta))


def test_refuses_a_beta_that_does_not_fit():
    with pytest.raises(ActivationArgumentError):
        swish(torch.zeros(2, 3), torch.ones(4))
