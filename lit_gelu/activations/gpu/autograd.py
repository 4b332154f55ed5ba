"""An activation by the code that its route names, differentiable like torch's own.

Forward mode, `torch.func` and derivatives of derivatives are torch's own in any case: `route` sends the first two
there, and a backward pass that is itself recorded differentiates torch's function.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from lit_gelu.activations.gpu import formulas
from lit_gelu.activations.gpu.routes import Route, give_up, route

Plain = Callable[..., Tensor]
_Found = TypeVar("_Found")


class LitGeluKernelWarning(UserWarning):
    """A fused kernel failed; torch's own computes instead, from then on."""


class Kernel(ABC):
    """A function of a tensor, and of others that are its parameters; all gradients in one pass over memory."""

    name: str

    @abstractmethod
    def forward(self, x: Tensor, /, *parameters: Tensor) -> Tensor:
        """Return the function of a 16-bit tensor of any layout."""

    @abstractmethod
    def backward(self, gradient: Tensor, x: Tensor, /, *parameters: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient by each tensor for that by the output, which may be strided and expanded."""

    def route(self, x: Tensor) -> Route:
        """Return which code computes the function of x."""
        found = route(x)
        return Route("torch", "torch.compile makes a kernel of its own") if found.code == "formula" else found

    def formula(self, x: Tensor, /, *parameters: Tensor) -> Tensor:
        """Return the function in operations for a compiler; called where `route` says so."""
        raise NotImplementedError

    def give_up(self, error: Exception) -> None:
        """Remember that this failed; from then on `route` says why torch computes."""
        give_up(error)


@dataclass(frozen=True)
class TritonKernel(Kernel):
    """A function of `device` by its name, with the numbers of its parameters."""

    name: str
    p0: float = 0.0
    p1: float = 0.0

    def forward(self, x: Tensor, /, *_: Tensor) -> Tensor:
        """Return the function of x."""
        from lit_gelu.activations.gpu import operators

        y: Tensor = operators.activation(x, self.name, self.p0, self.p1)
        return y

    def backward(self, gradient: Tensor, x: Tensor, /, *_: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient by x."""
        from lit_gelu.activations.gpu import operators

        return (operators.activation_backward(gradient, x, self.name, self.p0, self.p1),)

    def route(self, x: Tensor) -> Route:
        """Return which code computes the function of x."""
        return route(x)

    def formula(self, x: Tensor, /, *_: Tensor) -> Tensor:
        """Return the function by its formula, which a compiler fuses with what is beside it."""
        y: Tensor = _ByFormula.apply(x, self.name, self.p0, self.p1)
        return y


def fused(kernel: Kernel, plain: Plain, x: Tensor, *parameters: Tensor) -> Tensor:
    """Compute an activation by its kernel, its formula or ``plain``, torch's own function of the same tensors."""
    code = kernel.route(x).code
    if code == "torch":
        return plain(x, *parameters)
    if code == "formula":
        return kernel.formula(x, *parameters)
    y: Tensor = _ByKernel.apply(kernel, plain, x, *parameters)
    return y


def tried(kernel: Kernel, compute: Callable[..., _Found], *tensors: Tensor) -> _Found | None:
    """Return what a kernel computes; nothing if it fails, which must not end a training run."""
    # Around the kernel alone: what autograd does with tensors to be kept may raise too, as checkpoints do on purpose.
    try:
        return compute(*tensors)
    except torch.OutOfMemoryError:  # says nothing of the kernel
        raise
    except Exception as error:  # noqa: BLE001  whatever a compiler raises
        _leave_to_torch(kernel, error)
        return None


def _leave_to_torch(kernel: Kernel, error: Exception) -> None:
    """Leave to torch what a kernel failed at, and say so."""
    kernel.give_up(error)
    warnings.warn(
        f"The kernel of {kernel.name!r} failed, so torch's own functions compute from now on: "
        f"{type(error).__name__}: {error}",
        LitGeluKernelWarning,
        stacklevel=5,
    )


class _ByKernel(torch.autograd.Function):
    """``f(x, ...)``, of which these tensors alone are kept."""

    # The old style, without `setup_context`: with it, torch reads the signature anew at every call, in 40 us.

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, plain: Plain, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        y = tried(kernel, kernel.forward, *tensors)
        ctx.kernel, ctx.plain = None if y is None else kernel, plain
        return plain(*tensors) if y is None else y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if ctx.kernel is not None and not torch.is_grad_enabled():  # else somebody differentiates the gradient
            found = tried(ctx.kernel, ctx.kernel.backward, gradient, *tensors)
            if found is not None:
                return None, None, *found
        return None, None, *_by_torch(ctx.plain, tensors, gradient)


def _by_torch(plain: Plain, tensors: tuple[Tensor, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return torch's gradients; not by `torch.func`, which refuses where somebody has hooks on saved tensors."""
    again = torch.is_grad_enabled()
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    with torch.enable_grad():
        found = iter(torch.autograd.grad(plain(*tensors), wanted, gradient, create_graph=again))
    return tuple(next(found) if tensor.requires_grad else None for tensor in tensors)


class _ByFormula(torch.autograd.Function):
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
