"""Gated kernels through torch's autograd, in Triton's interpreter; see `interpreted_harness`.

python interpreted_gated.py OUT
"""

import torch
from interpreted_harness import HALF, half_normal, main, started
from torch import nn
from torch.nn import functional as F

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.gpu import operators
from lit_gelu.activations.modules import GEGLU, ReGLU, SwiGLU
from lit_gelu.kernels import fuse

BOTH = ["gated_forward", "gated_backward"]
#: Each module by its dimension, and its function of gate and value in float64, the first half being the gate.
GATED = {
    "geglu": (GEGLU, lambda a, b: F.gelu(a) * b),
    "geglu_tanh": (lambda dim: GEGLU(dim, "tanh"), lambda a, b: F.gelu(a, approximate="tanh") * b),
    "geglu_sigmoid": (lambda dim: GEGLU(dim, "sigmoid"), lambda a, b: a * torch.sigmoid(1.702 * a) * b),
    "swiglu": (lambda dim: SwiGLU(dim, 0.7), lambda a, b: a * torch.sigmoid(0.7 * a) * b),
    "reglu": (ReGLU, lambda a, b: a.relu() * b),
    "glu": (lambda dim: fuse(nn.GLU(dim)), lambda a, b: a * torch.sigmoid(b)),
}


def _compare(name, x, dim, gradient=None, kernels=BOTH):
    build, function = GATED[name]
    wide = x.detach().double().requires_grad_()
    wanted = function(*wide.chunk(2, dim))
    gradient = half_normal(*wanted.shape, seed=1) if gradient is None else gradient
    (wanted_by_x,) = torch.autograd.grad(wanted, wide, gradient.double())
    leaf = x.detach().requires_grad_()
    started.clear()
    y = build(dim)(leaf)
    (by_x,) = torch.autograd.grad(y, leaf, gradient)
    assert started == kernels, started
    assert y.shape == wanted.shape
    if not kernels:
        return
    assert torch.all((y - wanted).abs() <= 1.1 * HALF * wanted.abs() + 2.0**-23)
    doubled = torch.cat([gradient.abs()] * 2, dim)
    factor = torch.cat(x.abs().chunk(2, dim)[::-1], dim).double()
    assert torch.all((by_x - wanted_by_x).abs() <= 1.1 * HALF * (wanted_by_x.abs() + doubled * factor) + 2.0**-22)


def every_function():
    for name in GATED:
        _compare(name, half_normal(3, 2000), -1)


def halves_of_channels():
    for name in GATED:
        _compare(name, half_normal(2, 6, 20, 30), 1)


def layouts():
    base = half_normal(4, 40, 60)
    _compare("geglu", base, 0)
    _compare("geglu", base.permute(2, 1, 0), 1)  # in memory the dimension lies between the others
    _compare("geglu", base.permute(2, 1, 0), 2)
    _compare("geglu", half_normal(8, 1300)[:, ::1][1:, 10:-10], 1)
    _compare("glu", half_normal(3, 2600)[:, ::2], -1)
    _compare("swiglu", half_normal(2, 1200), -1, half_normal(1).expand(2, 600))
    _compare("swiglu", half_normal(2, 1200), -1, half_normal(600, 2).t())
    _compare("glu", half_normal(1030), 0)
    _compare("geglu", half_normal(5, 3 * 1024 * 2), 1)


def short_halves_are_torchs():
    _compare("geglu", half_normal(50, 20), -1, kernels=[])
    _compare("glu", half_normal(2, 6, 20, 30).to(memory_format=torch.channels_last), 1, kernels=[])


def odd_sizes_are_refused():
    for x, dim in ((half_normal(5, 601), -1), (half_normal(600), 1)):
        try:
            GEGLU(dim)(x)
        except ActivationArgumentError:
            assert not started
        else:
            raise AssertionError("it was to be refused")


def extremes():
    big, inf = 65504.0, float("inf")
    gates = torch.tensor([inf, -inf, big, -big, 0.0, -0.0] * 100).half()
    for name in ("geglu", "geglu_tanh", "geglu_sigmoid", "swiglu", "reglu"):
        x = torch.cat([gates, torch.ones_like(gates)]).requires_grad_()
        y = GATED[name][0](0)(x)
        assert torch.equal(y[:6], torch.tensor([inf, 0.0, big, 0.0, 0.0, 0.0]).half()), (name, y[:6])
        y.backward(torch.ones_like(y))
        assert not x.grad.isnan().any()
    nan = torch.full((1200,), float("nan")).half()
    assert GEGLU()(nan).isnan().all()


def second_derivatives():
    x = half_normal(1200).requires_grad_()
    (first,) = torch.autograd.grad(GEGLU()(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    wide = x.detach().double().requires_grad_()
    gate, value = wide.chunk(2)
    (wide_first,) = torch.autograd.grad((F.gelu(gate) * value).sum(), wide, create_graph=True)
    (wanted,) = torch.autograd.grad(wide_first.sum(), wide)
    assert torch.allclose(second.double(), wanted, atol=16 * HALF)
    assert wanted.abs().max() > 1


def torchs_checks_of_operators():
    for x, dim in ((half_normal(3, 1200), 1), (half_normal(4, 6, 300).transpose(0, 1), 0)):
        torch.library.opcheck(operators.gated, (x, "swish", 1.0, dim, 0))
        gradient = operators.gated(x, "swish", 1.0, dim, 1)
        torch.library.opcheck(operators.gated_backward, (gradient, x, "swish", 1.0, dim, 1))


CHECKS = (
    every_function,
    halves_of_channels,
    layouts,
    short_halves_are_torchs,
    odd_sizes_are_refused,
    extremes,
    second_derivatives,
    torchs_checks_of_operators,
)

if __name__ == "__main__":
    main(CHECKS)
