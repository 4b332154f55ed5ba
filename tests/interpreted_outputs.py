"""Kernels that keep the output and a bit, in Triton's interpreter; see `interpreted_harness`.

python interpreted_outputs.py OUT
"""

import warnings

import numpy as np
import torch
from interpreted_harness import half_normal, main, start_by, started
from kernel_oracles import gelu, gelu_tanh, mish, swish

from lit_gelu import activations
from lit_gelu.activations import ActivationDropout
from lit_gelu.activations.families.gelu import GELU_VALLEYS
from lit_gelu.activations.families.mish import VALLEY as MISH
from lit_gelu.activations.families.swish import SILU_VALLEY
from lit_gelu.activations.gpu import launch, output_kernels
from lit_gelu.activations.gpu.autograd import LitGeluKernelWarning
from lit_gelu.activations.numerics.bits import packed
from lit_gelu.activations.numerics.valley import ValleyOutput

BOTH = ["valley_forward", "valley_backward"]
FUNCTIONS = {
    "gelu": (GELU_VALLEYS["none"], gelu),
    "gelu_tanh": (GELU_VALLEYS["tanh"], gelu_tanh),
    "gelu_sigmoid": (GELU_VALLEYS["sigmoid"], swish(1.702)),
    "silu": (SILU_VALLEY, swish(1.0)),
    "mish": (MISH, mish),
}


def _all(dtype):
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    return x[~x.isnan()]


def slopes_of_all_16_bit_outputs():
    """The kernel's arithmetic, whose numbers are float32 here: the interpreter rounds to bfloat16 by cutting off."""
    for name, (valley, oracle) in FUNCTIONS.items():
        for dtype, bound in ((torch.bfloat16, 0.016), (torch.float16, 0.0075)):
            x = _all(dtype)
            value, slope = oracle(x.double().numpy())
            y = torch.from_numpy(np.asarray(value)).to(dtype)
            device = valley.device
            beta = device.p0 if device.name == "swish" else 1.0
            found = torch.empty(len(x))
            numbers = (beta, 1.0, *output_kernels._numbers(device.name, dtype))
            bits = packed(x >= valley.lowest)
            ones = torch.ones(len(x))
            launch.flat("valley_backward", x, ones, y.float(), bits, found, len(x), *numbers)
            error = (found.double() - torch.from_numpy(np.asarray(slope))).abs()
            assert error.max() <= bound, (name, dtype, float(error.max()), float(x[error.argmax()]))
            assert (found[(y > 12).nonzero()] == 1).all(), name


def values_and_branches_of_all_float16_inputs():
    for name, (valley, _) in FUNCTIONS.items():
        x = _all(torch.float16)
        y, bits = ValleyOutput(valley).forward(x)
        assert torch.equal(bits, packed(x.float() >= valley.lowest)), name
        plain = launch.unary_forward(x, valley.device.name, valley.device.p0, 0.0)
        assert torch.equal(y, plain), name


def modules_through_autograd():
    layouts = (half_normal(1000), half_normal(1), half_normal(7, 9).t(), half_normal(40, 60)[:, ::2], half_normal(0, 3))
    for name in FUNCTIONS:
        module, plain = (activations.create(name, memory=memory) for memory in ("output", "autograd"))
        for x in layouts:
            leaf = x.detach().requires_grad_()
            gradient = half_normal(1, *x.shape[1:], seed=3).expand(x.shape)
            started.clear()
            y = module(leaf)
            (found,) = torch.autograd.grad(y, leaf, gradient)
            assert started == BOTH, started
            (wanted,) = torch.autograd.grad(plain(leaf.float()), leaf, gradient.float())
            assert torch.allclose(y.float(), plain(leaf.float()), rtol=2e-3, atol=1e-6), name
            assert torch.allclose(found.float(), wanted.float(), rtol=0, atol=0.06), (
                name,
                (found - wanted).abs().max(),
            )


def dropout_takes_the_slope_by_the_kernel():
    module = ActivationDropout("gelu(memory='output')", p=0.25)
    x = half_normal(4000).requires_grad_()
    torch.manual_seed(0)
    started.clear()
    y = module(x)
    (found,) = torch.autograd.grad(y.sum(), x)
    assert started == BOTH[1:], started
    torch.manual_seed(0)
    dropped = torch.nn.functional.dropout(torch.ones(4000).half(), 0.25) == 0
    assert (found[dropped] == 0).all()
    slope = torch.from_numpy(gelu(x.detach().double().numpy())[1]) / 0.75
    assert (found.double() - slope)[~dropped].abs().max() < 0.015


def what_fails_is_torchs():
    def fail(*_, **__):
        raise RuntimeError("no compiler")

    x = half_normal(100).requires_grad_()
    module = activations.create("mish(memory='output')")
    wanted = torch.autograd.grad(activations.create("mish")(x.float()).sum(), x)[0]
    for failing in (True, False):  # in the forward pass, or in the backward pass
        from lit_gelu.activations.gpu import routes

        routes._failure.clear()
        start_by(fail if failing else launch.start)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            y = module(x)
            start_by(fail)
            (found,) = torch.autograd.grad(y.sum(), x)
        assert [w.category for w in seen] == [LitGeluKernelWarning], seen
        assert torch.allclose(found.float(), wanted.float(), rtol=0, atol=0.02)


def switched_off():
    started.clear()
    x = half_normal(50).requires_grad_()
    activations.create("gelu(approximate='sigmoid', memory='output', kernels='off')")(x).sum().backward()
    activations.create("hard_swish(memory='output')")(x).sum().backward()
    assert started == []


CHECKS = [
    slopes_of_all_16_bit_outputs,
    values_and_branches_of_all_float16_inputs,
    modules_through_autograd,
    dropout_takes_the_slope_by_the_kernel,
    what_fails_is_torchs,
    switched_off,
]

if __name__ == "__main__":
    main(CHECKS)
