"""Keep the input alone for the backward pass, and compute the rest again there.

An activation that is several of torch's functions keeps what each needs; with ``memory="recompute"`` the same functions
are called again in the backward pass. Values and gradients are bit for bit those of ``memory="autograd"``; derivatives
of any order, forward mode and `torch.func` go through it. A compiled model keeps what its compiler chooses, in either
mode.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack  # torch 2.11 to 2.15: no public name says as much
from torch.autograd import forward_ad
from torch.fx import Proxy

from lit_gelu.errors import ArgumentError


def checked_memory(memory: str) -> str:
    """Return ``memory`` if it is one of the modes."""
    if memory not in {"autograd", "recompute"}:
        raise ArgumentError(
            f"memory={memory!r} is not accepted. Use 'autograd', which keeps what torch's functions need, or "
            "'recompute', which keeps the input alone."
        )
    return memory


def memory_text(memory: str) -> str:
    """Return what ``repr`` says of a memory mode behind other arguments: nothing of the usual one."""
    return "" if memory == "autograd" else f", memory={memory!r}"


def compute(memory: str, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call ``function(*tensors)`` in a memory mode; ``"recompute"`` keeps the tensors alone for the backward pass.

    Args:
        memory: ``"autograd"`` or ``"recompute"``.
        function: Differentiable, without side effects and random numbers, and with no other tensors in it.
        *tensors: What it takes.

    Returns:
        What it returns.
    """
    # The compiler decides itself what it computes again. Through an autograd.Function whose backward pass calls
    # torch.func.vjp, torch 2.11 compiles gradients of 0 where the function ends in a conversion that changes nothing.
    if memory == "autograd" or _is_recorded(*tensors) or _twice_in_forward_mode():
        return function(*tensors)
    style = _RecomputedInTransforms if torch._C._are_functorch_transforms_active() else _Recomputed
    return cast("Tensor", style.apply(function, *tensors))


def compute_with(memory: str, function: Callable[..., Tensor], x: Tensor, **parameters: float | Tensor) -> Tensor:
    """Call ``function(x, **parameters)`` in a memory mode; tensors among the parameters get gradients too."""
    if memory == "autograd":
        return function(x, **parameters)
    tensors = {name: value for name, value in parameters.items() if isinstance(value, Tensor)}
    fixed = {name: value for name, value in parameters.items() if name not in tensors}
    names = tuple(tensors)

    def call(x: Tensor, *values: Tensor) -> Tensor:
        return function(x, **fixed, **dict(zip(names, values, strict=True)))

    return compute(memory, call, x, *tensors.values())


def _is_recorded(*tensors: object) -> bool:
    """Say whether the operations are written down: by a compiler, an exporter, ``torch.jit.trace`` or ``torch.fx``."""
    # None of them can write a Python function of the backward pass, and an exporter is to see torch's own operators.
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    return any(isinstance(tensor, Proxy) for tensor in tensors)


def _twice_in_forward_mode() -> bool:
    """Say whether forward mode is inside forward mode: torch calls a rule for the inner one alone, and then has 0."""
    if not torch._C._are_functorch_transforms_active():
        return False
    levels = get_interpreter_stack() or ()
    return sum(level.key() == TransformType.Jvp for level in levels) > 1


class _Recomputed(torch.autograd.Function):
    """``function(*tensors)``, of which only ``tensors`` are saved."""

    # The old style: with `setup_context`, torch reads the signature anew at every call, which takes 40 us.

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        _save(ctx, function, tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Not by `torch.func`, which takes longer and refuses where somebody has hooks on saved tensors.
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        again = torch.is_grad_enabled()  # somebody differentiates the gradient
        # Detached they would lose the tangents of forward mode over reverse mode. Views, since what one was computed
        # from may be another: its gradient is asked for as what the function was given.
        linked = again or forward_ad._current_level >= 0
        if not linked:
            tensors = [saved.detach().requires_grad_(need) for saved, need in zip(tensors, needed, strict=True)]
        with torch.enable_grad():
            if linked:
                tensors = [saved.view_as(saved) for saved in tensors]
            output = ctx.function(*tensors)
        leaves = [tensor for tensor, need in zip(tensors, needed, strict=True) if need]
        gradients = iter(torch.autograd.grad(output, leaves, gradient, create_graph=again))
        return (None, *(next(gradients) if need else None for need in needed))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensor:
        saved = ctx.saved_tensors
        filled = tuple(torch.zeros_like(s) if t is None else t for s, t in zip(saved, tangents, strict=True))
        # Twice in reverse: a forward-mode rule must not itself use forward mode, which torch does not nest.
        output, pull = torch.func.vjp(ctx.function, *saved)[:2]
        push = torch.func.vjp(pull, torch.zeros_like(output))[1]
        return cast("Tensor", push(filled)[0])


class _RecomputedInTransforms(_Recomputed):
    """The same where `torch.func` transforms it, which asks for the new style."""

    generate_vmap_rule = True

    @staticmethod
    def forward(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:  # type: ignore[override]
        return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004 - torch's signature
        _save(ctx, inputs[0], inputs[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *torch.func.vjp(ctx.function, *ctx.saved_tensors)[1](gradient))


def _save(ctx: Any, function: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> None:
    """Keep the tensors for both directions of differentiation."""
    ctx.function = function
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
