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
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad
from torch.fx import Proxy

from lit_gelu.activations.errors import ActivationArgumentError

_KEPT = {
    "autograd": "which keeps what torch's kernels need",
    "recompute": "which keeps the input alone",
    "output": "which keeps the output alone",
}


def checked_memory(memory: str, *more: str) -> str:
    """Return ``memory`` if it is one of the modes that activations of several kernels have, or one ``more``."""
    accepted = ("autograd", "recompute", *more)
    if memory not in accepted:
        described = [f"{mode!r}, {_KEPT[mode]}" for mode in accepted]
        raise ActivationArgumentError(f"memory={memory!r} is not accepted. Use {', or '.join(described)}.")
    return memory


def keeps_output(name: str, memory: str, inplace: bool = False) -> bool:
    """Say whether an activation that is one kernel of torch's keeps its output alone; refuse what it cannot do."""
    if memory == "recompute":
        raise ActivationArgumentError(
            f"{name!r}: memory={memory!r} is not accepted: torch's kernel keeps its input alone already. Leave memory "
            "out, or use 'output', which keeps the output alone."
        )
    if checked_memory(memory, "output") == "output" and inplace:
        raise ActivationArgumentError(
            f"{name!r}: memory='output' is not accepted with inplace=True, which overwrites the input. Leave one of "
            "them out."
        )
    return memory == "output"


def memory_text(memory: str) -> str:
    """Return what ``repr`` says of a memory mode behind other arguments: nothing of the usual one."""
    return "" if memory == "autograd" else f", memory={memory!r}"


def is_recorded(*tensors: object) -> bool:
    """Say whether the operations are written down: by a compiler, an exporter, ``torch.jit.trace`` or ``torch.fx``."""
    # None of them can write a Python function of the backward pass. A compiler chooses itself what it keeps, and an
    # exporter is to see torch's own operators.
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    return any(isinstance(tensor, Proxy) for tensor in tensors)


def compute(memory: str, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call ``function(*tensors)`` in a memory mode; ``"recompute"`` keeps the tensors alone for the backward pass."""
    # The function is differentiable, without side effects and random numbers, and with no other tensors in it.
    # The compiler decides itself what it computes again. Through an autograd.Function whose backward pass calls
    # torch.func.vjp, torch 2.11 compiles gradients of 0 where the function ends in a conversion that changes nothing.
    if memory == "autograd" or is_recorded(*tensors) or _twice_in_forward_mode():
        return function(*tensors)
    style = _RecomputedInTransforms if torch._C._are_functorch_transforms_active() else _Recomputed
    return cast("Tensor", style.apply(function, *tensors))


def _twice_in_forward_mode() -> bool:
    """Say whether forward mode is inside forward mode: torch calls a rule for the inner one alone, and then has 0."""
    if not torch._C._are_functorch_transforms_active():
        return False
    levels = get_interpreter_stack() or ()
    return sum(level.key() == TransformType.Jvp for level in levels) > 1


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

    # The old style: with `setup_context`, torch reads the signature anew at every call, which takes 40 us.

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        _save(ctx, function, tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Not by `torch.func`, which takes longer and refuses where somebody has hooks on saved tensors.
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]
        again = torch.is_grad_enabled()  # somebody differentiates the gradient
        # Detached they would lose the tangents of forward mode over reverse mode. Views, since what one was computed
        # from may be another: its gradient is asked for as what the function was given.
        known = again or forward_ad._current_level >= 0
        if not known:
            tensors = [saved.detach().requires_grad_(want) for saved, want in zip(tensors, wanted, strict=True)]
        with torch.enable_grad():
            if known:
                tensors = [saved.view_as(saved) for saved in tensors]
            output = ctx.function(*tensors)
        leaves = [tensor for tensor, want in zip(tensors, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(output, leaves, gradient, create_graph=again))
        return (None, *(next(found) if want else None for want in wanted))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensor:
        saved = ctx.saved_tensors
        known = tuple(torch.zeros_like(s) if t is None else t for s, t in zip(saved, tangents, strict=True))
        # Twice in reverse: a forward-mode rule must not itself use forward mode, which torch does not nest.
        output, pull = torch.func.vjp(ctx.function, *saved)[:2]
        push = torch.func.vjp(pull, torch.zeros_like(output))[1]
        return cast("Tensor", push(known)[0])


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
