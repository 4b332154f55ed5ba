"""Kernels with learned parameters through autograd, in `interpreted_learned`, and what a compiler is given instead."""

import copy

import interpreted_checks
import pytest
import torch

from lit_gelu.activations.gpu import launch_learned, routes
from lit_gelu.activations.gpu.learned import LearnedKernel
from lit_gelu.activations.modules import GaussianGELU, Swish

test_checks = interpreted_checks.tests_of("interpreted_learned.py")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("arguments", [{}, {"channels": 6}, {"channels": 60, "channel_dim": -1}], ids=str)
@pytest.mark.parametrize("kind", [GaussianGELU, Swish])
def test_a_compiler_is_given_the_formula(monkeypatch, kind, arguments):
    module = kind(learnable=True, **arguments)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    wide_module = copy.deepcopy(module).double()
    x = (3 * torch.randn(5, 6, 60, generator=generator)).bfloat16().requires_grad_()
    wide = x.detach().double().requires_grad_()
    wanted = wide_module(wide)
    wanted.sum().backward()
    monkeypatch.setattr(routes, "is_candidate", lambda _: True)
    monkeypatch.setattr(routes, "_compiled_route", lambda _: routes.Route("formula", ""))
    torch.compiler.reset()
    y = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
    y.sum().backward()
    assert torch.all((y - wanted).abs() <= 0.51 * 2.0**-7 * wanted.abs() + 1e-9)
    assert torch.allclose(x.grad.double(), wide.grad, rtol=2.0**-8, atol=2.0**-9)
    for mine, other in zip(module.parameters(), wide_module.parameters(), strict=True):
        assert torch.allclose(mine.grad.double(), other.grad, rtol=1e-4, atol=1e-4 * float(other.grad.abs().max()))


@pytest.mark.parametrize(
    ("shape", "channel_dim", "channels", "why"),
    [
        ((2**15, 128), 1, 128, ""),
        ((64, 64, 32, 32), 1, 64, ""),
        ((8, 64, 20, 20), 1, 64, "400 elements"),
        ((70_000, 2, 600), 1, 2, "65,535"),
        ((4, 70_000, 600), 1, 70_000, "65,535"),
        ((2, 2**32), 0, 2, "2,147,483,647"),
        ((2**32, 2), 1, 2, ""),
        ((2, 2**27), 1, 2**27, "32 bits"),
    ],
)
def test_layouts(shape, channel_dim, channels, why):
    found = launch_learned.unsuited(torch.empty(shape, device="meta"), channel_dim, channels)
    assert why in found
    assert bool(why) == bool(found)


def test_a_wrong_number_of_channels_is_left_to_torchs_error(monkeypatch):
    monkeypatch.setattr("lit_gelu.activations.gpu.learned.route", lambda _: routes.Route("kernel", ""))
    kernel = LearnedKernel("swish", 1, 3)
    assert kernel.route(torch.zeros(2, 3, 600)).code == "kernel"
    assert "no 3 channels" in kernel.route(torch.zeros(2, 4, 600)).why
    assert "no 3 channels" in kernel.route(torch.zeros(600)).why
