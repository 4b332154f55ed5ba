"""Kernels of one tensor through torch's autograd, in Triton's interpreter; see `interpreted_harness`.

python interpreted_autograd.py OUT
"""

import warnings

import torch
from interpreted_harness import HALF, half_normal, main, start_by, started
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lit_gelu.activations.gpu import autograd, operators, routes
from lit_gelu.kernels import fuse

MODULES = [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.ELU(0.7), nn.Hardswish()]


def _reference(module, x, gradient):
    """Value and gradient in float64."""
    wide = x.detach().double().requires_grad_()
    y = module(wide)
    return y.detach(), torch.autograd.grad(y, wide, gradient.double())[0]


def _compare(module, x, gradient):
    fused = fuse(type(module)(**_arguments(module)))
    leaf = x.detach().requires_grad_()
    started.clear()
    y = fused(leaf)
    (by_x,) = torch.autograd.grad(y, leaf, gradient)
    assert started == ["unary_forward", "unary_backward"], started
    wanted, wanted_by_x = _reference(module, x, gradient)
    assert y.shape == x.shape
    assert by_x.shape == x.shape
    assert torch.all((y - wanted).abs() <= 1.1 * HALF * wanted.abs() + 2.0**-24)
    assert torch.all((by_x - wanted_by_x).abs() <= 1.1 * HALF * (wanted_by_x.abs() + gradient.abs()))


def _arguments(module):
    return {name: getattr(module, name) for name in ("approximate", "alpha") if hasattr(module, name)}


def every_function():
    for module in MODULES:
        _compare(module, half_normal(5, 700), half_normal(5, 700).flip(1))


def layouts_of_inputs():
    base = half_normal(6, 4, 8, 10)
    column = half_normal(6, 1)
    for x in (
        base.to(memory_format=torch.channels_last),
        base.transpose(0, 3),
        base[:, :, ::2],
        base[1:, 1:],
        base.flatten()[3:],
        column.expand(6, 50),
        base[:, :, 0, 0],
        half_normal(0, 3),
        half_normal(1)[0],
    ):
        _compare(nn.GELU(), x, half_normal(*x.shape))


def layouts_of_gradients():
    x = half_normal(40, 60)
    for gradient in (
        half_normal(1).expand(40, 60),
        half_normal(60, 40).t(),
        half_normal(80, 60)[::2],
        half_normal(40, 61)[:, 1:],
        half_normal(60).expand(40, 60),
    ):
        _compare(nn.GELU(), x, gradient)
    for shaped in (half_normal(2, 3, 4, 5).to(memory_format=torch.channels_last), half_normal(30, 20).t()):
        _compare(nn.SiLU(), shaped, torch.ones(()).half().expand(shaped.shape))


def gradient_of_a_sum_and_of_a_cat():
    x = half_normal(30, 20).requires_grad_()
    torch.cat([fuse(nn.GELU())(x)[:, ::2], x[:, ::2]]).sum().backward()
    wide = x.detach().double().requires_grad_()
    torch.cat([F.gelu(wide)[:, ::2], wide[:, ::2]]).sum().backward()
    assert torch.allclose(x.grad.double(), wide.grad, atol=4 * HALF)


def second_derivatives():
    x = half_normal(50).requires_grad_()
    for module in (nn.GELU(), nn.SiLU()):
        fused = fuse(type(module)())
        (first,) = torch.autograd.grad(fused(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        wide = x.detach().double().requires_grad_()
        (wide_first,) = torch.autograd.grad(module(wide).sum(), wide, create_graph=True)
        (wide_second,) = torch.autograd.grad(wide_first.sum(), wide)
        assert torch.allclose(first.double(), wide_first, atol=8 * HALF)
        assert torch.allclose(second.double(), wide_second, atol=8 * HALF)
        assert second.abs().max() > 0.1


def transforms_of_functions():
    fused, x, tangent = fuse(nn.GELU()), half_normal(20), half_normal(20).flip(0)
    y, pushed = torch.func.jvp(fused, (x,), (tangent,))
    wanted, wanted_pushed = torch.func.jvp(F.gelu, (x,), (tangent,))
    assert torch.equal(y, wanted)
    assert torch.equal(pushed, wanted_pushed)
    assert pushed.abs().max() > 0.1
    rows = half_normal(4, 5)
    assert torch.equal(torch.func.vmap(fused)(rows), F.gelu(rows))
    fused_rows, plain_rows = (
        torch.func.vmap(torch.func.grad(lambda row, f=f: f(row).sum()))(rows) for f in (fused, F.gelu)
    )
    assert torch.equal(fused_rows, plain_rows)
    of_one, of_plain = (torch.func.hessian(lambda v, f=f: f(v).sum())(rows[0]) for f in (fused, F.gelu))
    assert torch.equal(of_one, of_plain)
    assert of_one.abs().max() > 0.1


def torchs_checks_of_operators():
    x = half_normal(6, 7)
    for arguments in ((x, "gelu", 0.0, 0.0), (x.t(), "elu", 0.5, 0.0), (x[:, ::2], "swish", 1.0, 0.0)):
        torch.library.opcheck(operators.activation, arguments)
        torch.library.opcheck(operators.activation_backward, (arguments[0].clone(), *arguments))


def only_the_input_is_kept():
    x, kept = half_normal(300).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        fuse(nn.Mish())(x)
    assert kept == [x.data_ptr()]


def _fail(*_, **__):
    raise RuntimeError("no such instruction")


def a_failing_kernel_stops_nothing():
    start_by(_fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = fuse(nn.GELU())(half_normal(30))
    assert torch.equal(y, F.gelu(half_normal(30)))
    (warning,) = caught
    assert issubclass(warning.category, autograd.LitGeluKernelWarning)
    assert "'gelu' failed" in str(warning.message)
    assert "no such instruction" in str(warning.message)
    assert routes._failure == ["a kernel failed before: RuntimeError: no such instruction"]


def a_kernel_that_fails_in_the_backward_pass_stops_nothing():
    x = half_normal(30).requires_grad_()
    y = fuse(nn.GELU())(x)
    start_by(_fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (by_x,) = torch.autograd.grad(y.sum(), x)
    (wanted,) = torch.autograd.grad(F.gelu(x).sum(), x)
    assert torch.equal(by_x, wanted)
    assert [warning.category for warning in caught] == [autograd.LitGeluKernelWarning]
    assert routes._failure


def a_lack_of_memory_is_no_failure_of_a_kernel():
    def lack(*_, **__):
        raise torch.OutOfMemoryError("tried to allocate")

    start_by(lack)
    try:
        fuse(nn.GELU())(half_normal(30))
    except torch.OutOfMemoryError:
        assert not routes._failure
    else:
        raise AssertionError("it was to be raised")


def a_checkpoint_is_no_failure():
    x = half_normal(300).requires_grad_()
    started.clear()
    y = checkpoint(fuse(nn.GELU()), x, use_reentrant=False)
    (by_x,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(by_x, torch.autograd.grad(fuse(nn.GELU())(x).sum(), x)[0])
    assert started[:3] == ["unary_forward", "unary_forward", "unary_backward"]
    assert not routes._failure


CHECKS = (
    every_function,
    layouts_of_inputs,
    layouts_of_gradients,
    gradient_of_a_sum_and_of_a_cat,
    second_derivatives,
    transforms_of_functions,
    torchs_checks_of_operators,
    only_the_input_is_kept,
    a_failing_kernel_stops_nothing,
    a_kernel_that_fails_in_the_backward_pass_stops_nothing,
    a_lack_of_memory_is_no_failure_of_a_kernel,
    a_checkpoint_is_no_failure,
)

if __name__ == "__main__":
    main(CHECKS)
