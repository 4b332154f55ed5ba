"""GELU with a mean and a standard deviation."""

import math

import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of

from lit_gelu import activations
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional import gaussian_gelu, gaussian_gelu_derivative, gelu, gelu_derivative


class TestGaussianGelu(ActivationContract):
    cases = cases_of("gaussian_gelu")


@pytest.mark.parametrize(
    ("mu", "lowest", "minimum"), [(-1.0, -1.13173599, -0.50656113), (1.0, -0.51290922, -0.03341673)]
)
def test_minimum(mu, lowest, minimum):
    """x* / sigma and min/sigma for mu/sigma = -1 and 1."""
    sigma = 2.5
    x = torch.tensor([lowest * sigma], dtype=torch.float64)
    assert gaussian_gelu(x, mu * sigma, sigma).item() == pytest.approx(minimum * sigma, abs=1e-7)
    assert gaussian_gelu_derivative(x, 1, mu * sigma, sigma).item() == pytest.approx(0.0, abs=1e-8)


@pytest.mark.parametrize("mu", [-1.0, 0.0, 0.7])
def test_inflections(mu):
    """u = (-c +- sqrt(c**2 + 8)) / 2 with c = mu / sigma."""
    sigma = 0.5
    c = mu / sigma
    u = torch.tensor([(-c + sign * math.sqrt(c * c + 8)) / 2 for sign in (-1, 1)], dtype=torch.float64)
    assert gaussian_gelu_derivative(mu + sigma * u, 2, mu, sigma).abs().max().item() < 1e-14


def test_standard_parameters_give_gelu():
    x = torch.linspace(-9, 9, 101)
    assert torch.equal(gaussian_gelu(x), gelu(x))
    for order in (1, 2):
        torch.testing.assert_close(gaussian_gelu_derivative(x, order), gelu_derivative(x, order))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sigma", [1e-3, 1e-30, 1e-300, 5e-324, torch.tensor(1e-38), torch.tensor(0.0)])
def test_a_vanishing_sigma_approaches_relu(dtype, sigma):
    x = torch.tensor([-math.inf, -1e4, -1.0, -0.1, 0.0, 0.1, 1.0, 1e4, math.inf], dtype=dtype)
    assert torch.equal(gaussian_gelu(x, 0.0, sigma), x.relu())
    away = x != 0
    assert torch.equal(gaussian_gelu_derivative(x, 1, 0.0, sigma)[away], (x > 0).to(dtype)[away])
    assert torch.equal(gaussian_gelu_derivative(x, 2, 0.0, sigma)[away], torch.zeros_like(x)[away])
    step = gaussian_gelu(x, 0.5, sigma)
    assert torch.equal(step, torch.where(x > 0.5, x, 0.0))
    assert not gaussian_gelu_derivative(x, 1, 0.5, sigma).isnan().any()


def test_a_vanishing_sigma_has_gradients_without_nan():
    x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    for value in (1e-38, 0.0):
        sigma = torch.tensor(value, requires_grad=True)
        mu = torch.tensor(0.0, requires_grad=True)
        gradients = torch.autograd.grad(gaussian_gelu(x, mu, sigma).sum(), (x, mu, sigma))
        assert not any(gradient.isnan().any() for gradient in gradients)
        assert gradients[0].tolist() == [0.0, 0.5, 1.0]


def test_parameters_by_channel_and_their_gradients():
    x = torch.randn(4, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mu = torch.tensor([-0.5, 0.0, 1.5], dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    for channel in range(3):
        alone = gaussian_gelu(x[:, channel], mu[channel].item(), sigma[channel].item())
        torch.testing.assert_close(gaussian_gelu(x, mu, sigma)[:, channel], alone)
    assert torch.autograd.gradcheck(gaussian_gelu, (x.requires_grad_(), mu, sigma))
    assert torch.autograd.gradcheck(lambda *a: gaussian_gelu_derivative(a[0], 1, *a[1:]), (x, mu, sigma))


def test_refuses_bad_parameters():
    x = torch.zeros(2, 3)
    for sigma in (0.0, -1.0, math.nan):
        with pytest.raises(ActivationArgumentError):
            gaussian_gelu(x, sigma=sigma)
    with pytest.raises(ActivationArgumentError):
        gaussian_gelu(x, mu=torch.zeros(2))


@pytest.mark.parametrize("sigma", [1e-4, 1e-3, 0.5])
def test_small_scales_in_float16_are_those_of_float64(sigma):
    """x / sigma is beyond float16's largest number from x = 6.6 on with the smallest of these."""
    x = torch.tensor([-6e4, -70.0, -7.0, -0.5, 0.0, 0.5, 7.0, 70.0, 6e4], dtype=torch.float16)
    found = activations.create(f"gaussian_gelu(sigma={sigma})").half()(x)
    exact = x.double() * torch.special.ndtr(x.double() / sigma)
    assert torch.allclose(found.double(), exact, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sigma", [1e-20, 1e-38, 1e-160, 1e-300])
def test_a_module_with_a_tiny_sigma_is_relu(sigma, dtype):
    x = torch.linspace(-4, 4, 64, dtype=dtype).requires_grad_()
    y = activations.create("gaussian_gelu", sigma=sigma)(x)
    torch.testing.assert_close(y, torch.relu(x))
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], (x > 0).to(dtype))
