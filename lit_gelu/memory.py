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
    # A compiler, an exporter, ``torch.jit.trace`` and ``torch.fx`` are to see torch's own operators; `torch.func`
    # refuses hooks on saved tensors, and a tensor that is saved has no tangent.
    if (
        memory == "autograd"
        or torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or any(isinstance(tensor, Proxy) for tensor in tensors)
    ):
        return function(*tensors, **parameters)
    called = partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
    return cast("Tensor", called(*tensors, **parameters))
