"""Whole modules written down by `torch.fx`, against plain formulas."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.activations import create


def normal_cdf(x):
    return torch.special.ndtr(x)


def gated(gate):
    return lambda x: gate(x[:, :4]) * x[:, 4:]


def xielu(x, alpha_p=0.8, alpha_n=0.8, beta=0.5):
    return torch.where(x > 0, alpha_p * x * x + beta * x, alpha_n * (torch.exp(x) - 1 - x) + beta * x)


ORACLES = {
    "swish(beta=1.5)": lambda x: x * torch.sigmoid(1.5 * x),
    "swish(learnable=True)": F.silu,
    "swish(learnable=True, channels=8, memory='recompute')": F.silu,
    "swish(learnable=True, channels=8, channel_dim=-1)": F.silu,
    "gaussian_gelu": F.gelu,
    "gaussian_gelu(mu=0.5)": lambda x: x * normal_cdf(x - 0.5),
    "gaussian_gelu(sigma=0.5)": lambda x: x * normal_cdf(x / 0.5),
    "gaussian_gelu(sigma=0.5, memory='recompute')": lambda x: x * normal_cdf(x / 0.5),
    "gaussian_gelu(learnable=True)": F.gelu,
    "gaussian_gelu(learnable=True, channels=8)": F.gelu,
    "xielu": xielu,
    "sqrt_softplus": lambda x: F.softplus(x).sqrt(),
    "cauchy_linear": lambda x: x * (0.5 + torch.atan(x) / torch.pi),
    "laplace_linear": lambda x: x * torch.distributions.Laplace(0.0, 1.0).cdf(x),
    "hard_mish": lambda x: x / 2 * (x + 2).clamp(0, 2),
    "glu": lambda x: x[:, :4] * torch.sigmoid(x[:, 4:]),
    "reglu": gated(F.relu),
    "geglu": gated(F.gelu),
    "geglu(approximate='sigmoid')": gated(lambda x: x * torch.sigmoid(1.702 * x)),
    "swiglu(beta=2.0, memory='recompute')": gated(lambda x: x * torch.sigmoid(2.0 * x)),
}


@pytest.mark.parametrize("spec", ORACLES)
def test_torch_fx_traces_modules(spec):
    x = torch.randn(3, 8, requires_grad=True)
    module = nn.Sequential(nn.Identity(), create(spec))
    traced = torch.fx.symbolic_trace(module)
    expected = ORACLES[spec](x)
    for again in (traced, pickle.loads(pickle.dumps(traced))):  # a pickle writes the functions by name
        torch.testing.assert_close(again(x), expected, atol=1e-6, rtol=1e-5)
    (gradient,) = torch.autograd.grad(traced(x).sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), x)[0], atol=1e-5, rtol=1e-5)
