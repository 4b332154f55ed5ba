"""Keep the input alone for the backward pass, and compute the rest again there.

A module that is several kernels keeps what each needs; ``memory="recompute"`` calls the same kernels again in the
backward pass. Values and gradients are bit for bit those of ``memory="autograd"``, derivatives of any order, forward
mode and ``torch.func`` go through it, and a compiled model keeps what its compiler chooses, in either mode.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from lit_gelu.activations.errors import ActivationArgumentError

MEMORY_MODES = ("autograd", "recompute")


def checked_memory(memory: str) -> str:
    """Return ``memory`` if it is one of the modes."""
    if memory not in MEMORY_MODES:
        raise ActivationArgumentError(
            f"memory={memory!r} is not accepted. Use 'autograd', which keeps what torch's kernels need, or "
            "'recompute', which keeps the input alone."
        )
    return memory


def memory_text(memory: str) -> str:
    """Return what ``repr`` says of a memory mode behind other arguments: nothing of the usual one."""
    return "" if memory == "autograd" else f", memory={memory!r}"


def compute(memory: str, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call ``function(*tensors)`` in a memory mode; ``"recompute"`` keeps the tensors alone for the backward pass."""
    # The function is differentiable, without side effects and random numbers, and with no other tensors in it.
    # The compiler decides itself what it computes again. Through an autograd.Function whose backward pass calls
    # torch.func.vjp, torch 2.11 compiles gradients of 0 where the function ends in a conversion that changes nothing.
    if memory == "autograd" or torch.compiler.is_compiling():
        return function(*tensors)
    return cast("Tensor", _Recomputed.apply(function, *tensors))


def compute_with(memory: str, function: Callable[..., Tensor], x: Tensor, **parameters: float | Tensor) -> Tensor:
    """Call ``function(x, **parameters)`` in a memory mode; tensors among the parameters get gradients too."""
    if memory == "autograd":
        return function(x, **parameters)
    tensors = {name: value for name, value in parameters.items() if isinstance(value, Tensor)}
    fixed = {name: value for name, value in parameters.items() if name not in tensors}
    return compute(memory, functools.partial(_named_call, function, tuple(tensors), fixed), x, *tensors.values())


def _named_call(
    function: Callable[..., Tensor], names: tuple[str, ...], fixed: dict[str, Any], x: Tensor, *values: Tensor
) -> Tensor:
    """Call a function with some of its keyword arguments given by position."""
    return function(x, **fixed, **dict(zip(names, values, strict=True)))


class _Recomputed(torch.autograd.Function):
    """``function(*tensors)``, of which only ``tensors`` are saved."""

    generate_vmap_rule = True

    @staticmethod
    def forward(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004 - torch's signature
        ctx.function = inputs[0]
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pull = torch.func.vjp(ctx.function, *ctx.saved_tensors)[1]
        return (None, *pull(gradient))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensor:
        saved = ctx.saved_tensors
        known = tuple(torch.zeros_like(s) if t is None else t for s, t in zip(saved, tangents, strict=True))
        # Twice in reverse: a forward-mode rule must not itself use forward mode, which torch does not nest.
        output, pull = torch.func.vjp(ctx.function, *saved)[:2]
        push = torch.func.vjp(pull, torch.zeros_like(output))[1]
        return cast("Tensor", push(known)[0])
