"""Gated kernels through autograd, in `interpreted_gated`, and what a compiler is given instead."""

import interpreted_checks
import pytest
import torch
from torch.nn import functional as F

from lit_gelu.activations.gpu import routes
from lit_gelu.activations.modules import GEGLU, ReGLU, SwiGLU

test_checks = interpreted_checks.tests_of("interpreted_gated.py")


@pytest.mark.parametrize(
    ("module", "gate"),
    [
        (GEGLU(), F.gelu),
        (GEGLU(approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
        (GEGLU(approximate="sigmoid"), lambda x: x * torch.sigmoid(1.702 * x)),
        (SwiGLU(beta=0.7), lambda x: x * torch.sigmoid(0.7 * x)),
        (ReGLU(), F.relu),
    ],
    ids=["geglu", "geglu_tanh", "geglu_sigmoid", "swiglu", "reglu"],
)
def test_a_compiler_is_given_the_formula(monkeypatch, module, gate):
    monkeypatch.setattr(routes, "is_candidate", lambda _: True)
    monkeypatch.setattr(routes, "_compiled_route", lambda _: routes.Route("formula", ""))
    x = (3 * torch.randn(5, 60, generator=torch.Generator().manual_seed(0))).bfloat16().requires_grad_()
    torch.compiler.reset()
    y = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
    y.backward(torch.ones_like(y))
    wide = x.detach().double().requires_grad_()
    first, second = wide.chunk(2, -1)
    wanted = gate(first) * second
    wanted.sum().backward()
    assert torch.allclose(y.double(), wanted, rtol=2.0**-7, atol=1e-9)
    assert torch.allclose(x.grad.double(), wide.grad, rtol=2.0**-6, atol=2.0**-6)
