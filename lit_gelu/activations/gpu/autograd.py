"""An activation by the code that its route names, differentiable like torch's own.

Forward mode, `torch.func` and derivatives of derivatives are torch's own in any case: `route` sends the first two
there, and a backward pass that is itself recorded differentiates torch's function.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.gpu import formulas
from lit_gelu.activations.gpu.routes import give_up, route

Plain = Callable[[Tensor], Tensor]


class LitGeluKernelWarning(UserWarning):
    """A fused kernel failed; torch's own computes instead, from then on."""


@dataclass(frozen=True)
class Kernel:
    """A function of `device` by its name, with the numbers of its parameters."""

    name: str
    p0: float = 0.0
    p1: float = 0.0


def fused(kernel: Kernel, plain: Plain, x: Tensor) -> Tensor:
    """Compute an elementwise activation by its kernel, its formula or ``plain``, torch's own function of x."""
    code = route(x).code
    if code == "torch":
        return plain(x)
    if code == "formula":
        compiled: Tensor = _Formula.apply(x, kernel.name, kernel.p0, kernel.p1)
        return compiled
    try:
        y: Tensor = _Kernel.apply(x, kernel, plain)
    except Exception as error:  # noqa: BLE001  a compiler that fails must not end a training run
        give_up(error)
        warnings.warn(
            f"The kernel of {kernel.name!r} failed, so torch's own functions compute all activations from now on: "
            f"{type(error).__name__}: {error}",
            LitGeluKernelWarning,
            stacklevel=3,
        )
        return plain(x)
    return y


class _Kernel(torch.autograd.Function):
    """``f(x)``, of which x alone is kept."""

    # The old style, without `setup_context`: with it, torch reads the signature anew at every call, in 40 us.

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Kernel, plain: Plain) -> Tensor:
        from lit_gelu.activations.gpu import operators

        ctx.save_for_backward(x)
        ctx.kernel, ctx.plain = kernel, plain
        y: Tensor = operators.activation(x, kernel.name, kernel.p0, kernel.p1)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates the gradient
            return torch.func.vjp(ctx.plain, x)[1](gradient)[0], None, None
        from lit_gelu.activations.gpu import operators

        kernel = ctx.kernel
        return operators.activation_backward(gradient, x, kernel.name, kernel.p0, kernel.p1), None, None


class _Formula(torch.autograd.Function):
    """The same in operations that a compiler fuses; without forward mode, which it refuses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, p0: float, p1: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function = name, p0, p1
        return formulas.value(name, x, p0, p1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        name, p0, p1 = ctx.function
        return (gradient.float() * formulas.slope(name, x, p0, p1)).to(x.dtype), None, None, None
