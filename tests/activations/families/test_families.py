"""The contract of every family, and what is particular to some; minima and inflections are in naming/test_facts.py."""

import math

import numpy as np
import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.activations import functional
from lit_gelu.activations.functional import derivative
from lit_gelu.errors import ArgumentError

FAMILIES = {
    "PiecewiseLinear": ("identity", "relu", "relu6", "leaky_relu", "prelu"),
    "PiecewiseQuadratic": ("relu2", "hard_swish", "hard_mish"),
    "Elu": ("elu", "selu", "celu"),
    "Gelu": ("gelu",),
    "GaussianGelu": ("gaussian_gelu",),
    "Silu": ("silu",),
    "Swish": ("swish",),
    "CdfLinear": ("cdf_linear",),
    "Mish": ("mish",),
    "Sigmoid": ("sigmoid", "tanh", "hard_sigmoid"),
    "Softplus": ("softplus", "log_sigmoid", "sqrt_softplus"),
    "ClippedGelu": ("clipped_gelu",),
    "MegaLaplace": ("mega_laplace",),
    "Xielu": ("xielu",),
}
globals().update({
    f"Test{family}": type(f"Test{family}", (ActivationContract,), {"cases": cases_of(*names)})
    for family, names in FAMILIES.items()
})

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
gelu_derivative, gaussian_derivative, mega_derivative = (
    activations.registry.entry(name).derivative for name in ("gelu", "gaussian_gelu", "mega_laplace")
)


@pytest.mark.parametrize(
    ("spec", "torchs"),
    [
        ("relu", F.relu),
        ("relu6", F.relu6),
        ("leaky_relu(negative_slope=0.2)", lambda x: F.leaky_relu(x, 0.2)),
        ("prelu(init=0.3)", lambda x: F.prelu(x, torch.tensor([0.3]).double())),
        ("elu(alpha=0.5)", lambda x: F.elu(x, 0.5)),
        ("selu", F.selu),
        ("celu(alpha=0.5)", lambda x: F.celu(x, 0.5)),
        ("hard_swish", F.hardswish),
        ("hard_sigmoid", F.hardsigmoid),
    ],
)
def test_the_value_at_a_kink_is_torchs(spec, torchs):
    x = torch.tensor([-3.0, -1.0, -0.0, 0.0, 1.0, 3.0, 6.0, 7.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(torchs(x).sum(), x)
    torch.testing.assert_close(derivative(spec, x, 1).detach(), gradient, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(derivative(spec, x, 0), torchs(x), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: functional.gelu(x, approximate="erf"),
        lambda x: functional.gaussian_gelu(x, sigma=0.0),
        lambda x: functional.gaussian_gelu(x, sigma=math.nan),
        lambda x: functional.gaussian_gelu(x, mu=torch.zeros(2)),
        lambda x: functional.swish(x, torch.ones(4)),
        lambda x: functional.prelu(x, torch.zeros(2)),
        lambda x: functional.softplus(x, beta=-1.0),
        lambda x: functional.celu(x, alpha=0.0),
        lambda x: functional.clipped_gelu(x, 1.0, 1.0),
        lambda x: activations.create("clipped_gelu", min=2.0, max=-2.0),
    ],
)
def test_parameters_that_do_not_fit_are_refused(call):
    with pytest.raises(ArgumentError):
        call(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (functional.swish, [[0.5, 1.0, -2.0]]),
        (functional.gaussian_gelu, [[-0.5, 0.0, 1.5], [0.3, 1.0, 2.0]]),
        (lambda x, beta: activations.registry.entry("swish").derivative(x, 1, beta=beta), [[0.5, 1.0, -2.0]]),
        (lambda x, *a: gaussian_derivative(x, 1, *a), [[-0.5, 0.0, 1.5], [0.3, 1.0, 2.0]]),
        (functional.prelu, [[0.1, 0.0, -0.5]]),
    ],
)
def test_parameters_by_channel_and_their_gradients(function, parameters):
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tensors = [torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in parameters]
    for channel in range(3):
        alone = function(x[:, channel], *[values[channel] for values in parameters])
        torch.testing.assert_close(function(x, *tensors)[:, channel], alone)
    assert torch.autograd.gradcheck(function, (x, *tensors))


def test_half_precision_parameters_are_not_rounded():
    x = torch.tensor([-3.0], dtype=torch.bfloat16)
    assert functional.prelu(x, torch.tensor([0.3])).item() == torch.tensor(-0.9).bfloat16().item()


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("sigma", [1e-3, 1e-30, 1e-300, 5e-324, torch.tensor(1e-38), torch.tensor(0.0)])
def test_a_vanishing_sigma_approaches_relu(dtype, sigma):
    x = torch.tensor([-math.inf, -1e4, -1.0, -0.1, 0.0, 0.1, 1.0, 1e4, math.inf], dtype=dtype)
    assert torch.equal(functional.gaussian_gelu(x, 0.0, sigma), x.relu())
    away = x != 0
    assert torch.equal(gaussian_derivative(x, 1, 0.0, sigma)[away], (x > 0).to(dtype)[away])
    assert torch.equal(gaussian_derivative(x, 2, 0.0, sigma)[away], torch.zeros_like(x)[away])
    assert torch.equal(functional.gaussian_gelu(x, 0.5, sigma), torch.where(x > 0.5, x, 0.0))
    assert not gaussian_derivative(x, 1, 0.5, sigma).isnan().any()


def test_a_vanishing_sigma_has_gradients_without_nan():
    x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    for value in (1e-38, 0.0):
        mu, sigma = torch.tensor(0.0, requires_grad=True), torch.tensor(value, requires_grad=True)
        gradients = torch.autograd.grad(functional.gaussian_gelu(x, mu, sigma).sum(), (x, mu, sigma))
        assert not any(gradient.isnan().any() for gradient in gradients)
        assert gradients[0].tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("sigma", [1e-4, 1e-3, 0.5])
def test_small_scales_in_float16_are_those_of_float64(sigma):
    """x / sigma is beyond float16's largest number from x = 6.6 on with the smallest of these."""
    x = torch.tensor([-6e4, -70.0, -7.0, -0.5, 0.0, 0.5, 7.0, 70.0, 6e4], dtype=torch.float16)
    y = activations.create(f"gaussian_gelu(sigma={sigma})").half()(x)
    exact = x.double() * torch.special.ndtr(x.double() / sigma)
    assert torch.allclose(y.double(), exact, rtol=2e-3, atol=1e-6)


def test_special_values_of_the_slope_of_swish():
    x = torch.tensor([-torch.inf, -2.0, 0.0, 2.0, torch.inf])
    assert torch.equal(functional.swish(x, 0.0), x / 2)
    assert torch.equal(functional.swish(x, 1e30), x.relu())
    assert torch.equal(activations.registry.entry("swish").derivative(x, 1, 0.0), torch.full_like(x, 0.5))


@pytest.mark.parametrize(("dtype", "x"), [(torch.float32, 100.0), (torch.float16, 12.5), (torch.float64, 720.0)])
def test_the_second_derivative_of_mish_exists_where_torch_gives_nan(dtype, x):
    """torch's own double backward divides infinity by infinity there; the guard says when that has been mended."""
    point = torch.tensor([x], dtype=dtype, requires_grad=True)
    (first,) = torch.autograd.grad(F.mish(point).sum(), point, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), point)
    assert second.isnan().all()
    assert abs(derivative("mish", point, order=2).item()) < 1e-5


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_torchs_linear_part_of_softplus_is_too_small_by_what_the_docstring_says(beta):
    x = torch.linspace(-10, 60 / beta, 2001, dtype=torch.float64)
    apart = functional.softplus(x, beta) - F.softplus(x, beta)
    assert apart[beta * x <= 20].abs().max().item() < 1e-14
    linear = apart[beta * x > 20]
    assert linear.min().item() >= 0
    assert linear.max().item() <= 2.07e-9 / beta


@pytest.mark.parametrize("threshold", [0.0, 5.0])
def test_a_threshold_of_softplus_that_shows_is_in_every_figure(threshold):
    """torch goes over to x above it, with a jump; the formula without it would be of another function."""
    x, spec = torch.tensor([-2.0, 0.5, 2.0, 6.0], dtype=torch.float64), f"softplus(threshold={threshold})"
    assert torch.equal(derivative(spec, x, 0), F.softplus(x, threshold=threshold))
    assert torch.allclose(derivative(spec, x, 1), torch.where(x > threshold, 1.0, torch.sigmoid(x)), rtol=1e-12)
    jump = math.log1p(math.exp(-threshold))
    assert activations.compare("softplus", spec).value.largest == pytest.approx(jump, rel=1e-3)
    nodes = np.linspace(-12, 12, 2_000_001)
    squares = np.where(nodes > threshold, nodes, np.log1p(np.exp(nodes))) ** 2
    second = np.trapezoid(squares * np.exp(-(nodes**2) / 2), nodes) / math.sqrt(2 * math.pi)
    assert activations.gain(spec) == pytest.approx(second**-0.5, rel=1e-3)


def test_the_gradient_of_the_root_of_softplus_is_finite_where_softplus_underflows():
    """The root of torch's softplus has a NaN gradient there."""
    x = torch.tensor([-120.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(functional.sqrt_softplus(x).sum(), x)
    torch.testing.assert_close(gradient, torch.exp(x.detach() / 2) / 2)
    (torchs,) = torch.autograd.grad(F.softplus(x).sqrt().sum(), x)
    assert torchs.isnan().all()


def test_the_kinks_of_clipped_gelu_are_where_gelu_meets_the_bounds():
    kinks = activations.info("clipped_gelu(min=-0.125, max=6.0)").kinks
    x, jumps = torch.tensor(kinks, dtype=torch.float64).T
    torch.testing.assert_close(functional.gelu(x), torch.tensor([-0.125, -0.125, 6.0]).double(), rtol=0, atol=1e-15)
    torch.testing.assert_close(jumps, gelu_derivative(x) * torch.tensor([-1.0, 1.0, -1.0]), rtol=1e-6, atol=0)
    info = activations.info("clipped_gelu(min=-10.0, max=inf)")
    assert (info.kinks, info.minimum) == ((), activations.info("gelu").minimum)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("sigma", [4e-19, 1e-30, 1e-45])
def test_mega_laplace_with_a_deviation_near_0_is_a_step(sigma, dtype):
    x = torch.tensor([-math.inf, -1.0, 0.0, 1.0, math.inf], dtype=dtype)
    assert functional.mega_laplace(x, mu=0.0, sigma=sigma).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert mega_derivative(x, 2, mu=0.0, sigma=sigma).tolist() == [0.0] * 5
    assert mega_derivative(x, 1, mu=0.5, sigma=sigma).tolist() == [0.0] * 5
