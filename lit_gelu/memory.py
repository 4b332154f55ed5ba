"""Keep the input alone for the backward pass, and compute the rest again there.

An activation that is several of torch's functions keeps what each needs; with ``memory="recompute"`` the same functions
are called again in the backward pass, by ``torch.utils.checkpoint``. Values and gradients are bit for bit those of
``memory="autograd"``. A compiled model keeps what its compiler chooses, and `torch.func` and forward mode what autograd
keeps, in either mode.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx import Proxy
from torch.utils.checkpoint import checkpoint

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


def compute(memory: str, function: Callable[..., Tensor], *tensors: Tensor, **parameters: float | Tensor) -> Tensor:
    """Call ``function(*tensors, **parameters)``, without side effects and other tensors in it, in a memory mode."""
    if memory == "autograd" or _is_recorded_or_transformed(*tensors):
        return function(*tensors, **parameters)
    called = partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
    return cast("Tensor", called(*tensors, **parameters))


def _is_recorded_or_transformed(*tensors: object) -> bool:
    """Say whether operations are written down, or differentiated by other means than a backward pass."""
    # By a compiler, an exporter, ``torch.jit.trace`` or ``torch.fx``, which are to see torch's own operators;
    # `torch.func` refuses hooks on saved tensors, and a tensor that is saved has no tangent.
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return True
    return any(isinstance(tensor, Proxy) for tensor in tensors)
