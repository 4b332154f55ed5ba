"""Runs kernels in Triton's interpreter through torch's autograd, in a process of its own; writes what failed.

    python interpreted_autograd.py OUT    writes a JSON object from each check's name to its traceback, "" if it passed

Tensors lie on the CPU here, where activations are torch's own: `autograd.route` is replaced by one that asks for all
but the device.
"""

import json
import os
import sys
import traceback
import warnings

os.environ["TRITON_INTERPRET"] = "1"

import pathlib

import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.activations.gpu import autograd, launch, operators, routes
from lit_gelu.kernels import fuse

MODULES = [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.ELU(0.7), nn.Hardswish()]
HALF = 2.0**-11  # float16's unit roundoff


def _route(x):
    why = routes._transformed(x)
    return routes.Route("torch" if why else "kernel", why)


def _x(*shape):
    generator = torch.Generator().manual_seed(0)
    return (2 * torch.randn(shape, generator=generator)).half()


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
        _compare(module, _x(5, 700), _x(5, 700).flip(1))


def layouts_of_inputs():
    base = _x(6, 4, 8, 10)
    column = _x(6, 1)
    for x in (
        base.to(memory_format=torch.channels_last),
        base.transpose(0, 3),
        base[:, :, ::2],
        base[1:, 1:],
        base.flatten()[3:],
        column.expand(6, 50),
        base[:, :, 0, 0],
        _x(0, 3),
        _x(1)[0],
    ):
        _compare(nn.GELU(), x, _x(*x.shape))


def layouts_of_gradients():
    x = _x(40, 60)
    for gradient in (_x(1).expand(40, 60), _x(60, 40).t(), _x(80, 60)[::2], _x(40, 61)[:, 1:], _x(60).expand(40, 60)):
        _compare(nn.GELU(), x, gradient)
    for shaped in (_x(2, 3, 4, 5).to(memory_format=torch.channels_last), _x(30, 20).t()):
        _compare(nn.SiLU(), shaped, torch.ones(()).half().expand(shaped.shape))


def gradient_of_a_sum_and_of_a_cat():
    x = _x(30, 20).requires_grad_()
    torch.cat([fuse(nn.GELU())(x)[:, ::2], x[:, ::2]]).sum().backward()
    wide = x.detach().double().requires_grad_()
    torch.cat([F.gelu(wide)[:, ::2], wide[:, ::2]]).sum().backward()
    assert torch.allclose(x.grad.double(), wide.grad, atol=4 * HALF)


def second_derivatives():
    x = _x(50).requires_grad_()
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
    fused, x, tangent = fuse(nn.GELU()), _x(20), _x(20).flip(0)
    y, pushed = torch.func.jvp(fused, (x,), (tangent,))
    wanted, wanted_pushed = torch.func.jvp(F.gelu, (x,), (tangent,))
    assert torch.equal(y, wanted)
    assert torch.equal(pushed, wanted_pushed)
    assert pushed.abs().max() > 0.1
    rows = _x(4, 5)
    assert torch.equal(torch.func.vmap(fused)(rows), F.gelu(rows))
    fused_rows, plain_rows = (
        torch.func.vmap(torch.func.grad(lambda row, f=f: f(row).sum()))(rows) for f in (fused, F.gelu)
    )
    assert torch.equal(fused_rows, plain_rows)
    of_one, of_plain = (torch.func.hessian(lambda v, f=f: f(v).sum())(rows[0]) for f in (fused, F.gelu))
    assert torch.equal(of_one, of_plain)
    assert of_one.abs().max() > 0.1


def torchs_checks_of_operators():
    x = _x(6, 7)
    for arguments in ((x, "gelu", 0.0, 0.0), (x.t(), "elu", 0.5, 0.0), (x[:, ::2], "swish", 1.0, 0.0)):
        torch.library.opcheck(operators.activation, arguments)
        torch.library.opcheck(operators.activation_backward, (arguments[0].clone(), *arguments))


def only_the_input_is_kept():
    x, kept = _x(300).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        fuse(nn.Mish())(x)
    assert kept == [x.data_ptr()]


def a_failing_kernel_stops_nothing():
    def fail(*_, **__):
        raise RuntimeError("no such instruction")

    flat, launch._flat = launch._flat, fail
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = fuse(nn.GELU())(_x(30))
        assert torch.equal(y, F.gelu(_x(30)))
        (warning,) = caught
        assert issubclass(warning.category, autograd.LitGeluKernelWarning)
        assert "'gelu' failed" in str(warning.message)
        assert "no such instruction" in str(warning.message)
        assert routes._failure == ["a kernel failed before: RuntimeError: no such instruction"]
    finally:
        launch._flat = flat
        routes._failure.clear()


def a_kernel_that_fails_in_the_backward_pass_stops_nothing():
    x = _x(30).requires_grad_()
    flat = launch._flat
    y = fuse(nn.GELU())(x)

    def fail(*_, **__):
        raise RuntimeError("no such instruction")

    launch._flat = fail
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (by_x,) = torch.autograd.grad(y.sum(), x)
        (wanted,) = torch.autograd.grad(F.gelu(x).sum(), x)
        assert torch.equal(by_x, wanted)
        assert [warning.category for warning in caught] == [autograd.LitGeluKernelWarning]
        assert routes._failure
    finally:
        launch._flat = flat
        routes._failure.clear()


def a_lack_of_memory_is_no_failure_of_a_kernel():
    def fail(*_, **__):
        raise torch.OutOfMemoryError("tried to allocate")

    flat, launch._flat = launch._flat, fail
    try:
        fuse(nn.GELU())(_x(30))
    except torch.OutOfMemoryError:
        assert not routes._failure
    else:
        raise AssertionError("it was to be raised")
    finally:
        launch._flat = flat


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
)
started: list[str] = []


def main() -> None:
    """Run every check; write what failed."""
    flat = launch._flat

    def noted(kernel, *arguments, **constants):
        started.append(kernel)
        flat(kernel, *arguments, **constants)

    launch._flat = noted
    autograd.route = _route
    found = {}
    for check in CHECKS:
        try:
            check()
            found[check.__name__] = ""
        except Exception:  # noqa: BLE001  the test shows it
            found[check.__name__] = traceback.format_exc()
    with pathlib.Path(sys.argv[1]).open("w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
