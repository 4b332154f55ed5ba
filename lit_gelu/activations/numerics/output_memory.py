"""Activations that keep their output alone for the backward pass, which the next layer keeps anyway."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor, is_legacy_batchedtensor
from torch.autograd import forward_ad

from lit_gelu.activations.errors import DerivativeFromOutputError
from lit_gelu.activations.gpu.routes import Route
from lit_gelu.activations.numerics.memory import is_recorded, memory_text

Plain = Callable[[Tensor], Tensor]


class OutputRule(ABC):
    """A function and its gradient from the output, with what little the output does not tell."""

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the output for a floating tensor of any layout, without gaps in memory; and what is kept beside it."""

    def route(self, x: Tensor) -> Route:  # noqa: ARG002 - of those with a kernel it decides
        """Return which code computes the function of x."""
        return Route("torch", "memory='output' of this function is torch's operations")

    @abstractmethod
    def backward(self, gradient: Tensor, y: Tensor, *kept: Tensor) -> Tensor:
        """Return the gradient by the input for that by the output; both lie in memory as ``forward`` returned it."""


def from_output(rule: OutputRule, plain: Plain, x: Tensor) -> Tensor:
    """Compute an activation whose output alone is kept; by ``plain``, the same function, where nothing is kept."""
    if is_recorded(x) or not _is_plain(x):
        return plain(x)
    if not (torch.is_grad_enabled() and x.requires_grad):  # forward mode alone keeps nothing either
        return plain(x)
    if torch._C._are_functorch_transforms_active():
        raise _refused("under the transforms of torch.func")
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
        raise _refused("in forward mode and reverse mode at once")
    return cast("Tensor", _FromOutput.apply(x, rule))


def _is_plain(x: Tensor) -> bool:
    """Say whether a tensor is one block of numbers, as the rules read it: no subclass, nested or sparse one."""
    return type(x) in (Tensor, nn.Parameter) and not x.is_nested and x.layout == torch.strided


def _refused(where: str) -> DerivativeFromOutputError:
    """Return the error for derivatives that an output does not tell."""
    return DerivativeFromOutputError(
        f"memory='output' is not accepted {where}: the activation kept its output alone, which tells the first "
        "derivative in reverse mode and no other. Leave memory out where the model is built, or have "
        "lit_gelu.surgery.swap put activations without it into the model."
    )


class _FromOutput(torch.autograd.Function):
    """A function of which the output alone is saved."""

    # The old style: with `setup_context`, torch reads the signature anew at every call, which takes 40 us.

    @staticmethod
    def forward(ctx: Any, x: Tensor, rule: OutputRule) -> Tensor:
        y, *kept = rule.forward(x)
        ctx.save_for_backward(y, *kept)
        ctx.rule, ctx.stride = rule, y.stride()
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise _refused("with create_graph=True, for derivatives of derivatives")
        y, *kept = ctx.saved_tensors
        # A gradient may be expanded or strided, and hooks that offload y may lay it out anew.
        y = _laid_out(y, ctx.stride)
        if is_legacy_batchedtensor(gradient) or is_batchedtensor(gradient):  # many at once, all times the slope
            return gradient * ctx.rule.backward(torch.ones_like(y), y, *kept), None
        return ctx.rule.backward(_laid_out(gradient, ctx.stride), y, *kept), None


def _laid_out(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return a tensor with these strides."""
    if x.stride() == stride:
        return x
    return torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)


class OutputModule(nn.Module):
    """Before one of torch's modules among the bases: the same module, which keeps its output alone."""

    memory = "output"

    def rule(self) -> OutputRule:
        """Return how the module's function and its gradient are computed, with its present arguments."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name, which exported graphs take over
        """Apply the function to a floating tensor of any shape, elementwise."""
        return from_output(self.rule(), super().forward, input)

    def extra_repr(self) -> str:
        """Return the arguments of torch's module and the memory mode for ``repr``."""
        return (super().extra_repr() + memory_text(self.memory)).removeprefix(", ")

    def _get_name(self) -> str:
        """Return the name of torch's module."""
        return type(self).__mro__[2].__name__
