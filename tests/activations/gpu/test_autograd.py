"""Kernels through torch's autograd: layouts, gradients, transforms, failures; see `interpreted_autograd`."""

import interpreted_checks
import pytest
import torch
from torch.nn import functional as F

from lit_gelu.activations.gpu import autograd, routes

test_checks = interpreted_checks.tests_of("interpreted_autograd.py")


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_a_compiler_traces_the_formula_and_its_slope(monkeypatch, name):
    monkeypatch.setattr(routes, "_compiled_route", lambda _: routes.Route("formula", ""))
    approximate = {"gelu": "none", "gelu_tanh": "tanh"}[name]
    kernel = autograd.TritonKernel(name)

    def plain(x):
        raise AssertionError("the formula was to be traced")

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(x):
        return autograd.fused(kernel, plain, x)

    x = torch.linspace(-6, 6, 400).bfloat16().requires_grad_()
    y = compiled(x)
    y.backward(torch.ones_like(x))
    wide = x.detach().double().requires_grad_()
    wanted = F.gelu(wide, approximate=approximate)
    wanted.sum().backward()
    assert torch.all((y - wanted).abs() <= 0.51 * 2.0**-7 * wanted.abs() + 1e-9)
    assert torch.allclose(x.grad.double(), wide.grad, rtol=2.0**-8, atol=2.0**-9)
