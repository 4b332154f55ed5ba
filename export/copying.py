"""The evaluation-mode copy that is exported: the caller's module is never touched."""

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.export.errors import ExportError


def evaluation_copy(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a deep copy on the CPU, in evaluation mode, without what belongs to training.

    In the copy, modules wrapped by ``torch.compile`` are unwrapped, a LightningModule has no Trainer, and there are no
    forward or backward hooks: a monitor's hook holds its callback, the callback the Trainer, and neither belongs in a
    file. Forward pre-hooks of ``torch.nn.utils`` stay, because they compute weights (weight normalisation, pruning).

    Args:
        model: Any module; it is read only.
        dtype: To which the copy's floating-point parameters and buffers are cast.

    Returns:
        The copy. Its parameters do not require gradients.

    Raises:
        ExportError: If the module cannot be copied.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
        >>> twin = evaluation_copy(net)
        >>> net.training, twin.training, twin[0].weight is net[0].weight
        (True, False, False)
    """
    if not isinstance(model, nn.Module):
        raise ExportError(f"Only a torch.nn.Module can be exported, not {type(model).__name__}.")
    model = getattr(model, "_orig_mod", model)
    memo: dict[int, Any] = {}
    for module in list(model.modules()):
        _leave_out(module, memo)
    try:
        for module in list(model.modules()):
            if hasattr(module, "_orig_mod"):
                memo[id(module)] = copy.deepcopy(module._orig_mod, memo)
        twin: nn.Module = copy.deepcopy(model, memo)
    except Exception as error:
        raise ExportError(
            f"{type(model).__name__} cannot be copied ({error}). Export works on a deep copy, so that the module stays "
            "as it is: remove attributes that copy.deepcopy refuses, such as tensors with a gradient history, locks "
            "or open files."
        ) from error
    return twin.cpu().to(dtype).eval().requires_grad_(False)


def _leave_out(module: nn.Module, memo: dict[int, Any]) -> None:
    """Tell deepcopy, through its memo, what to put in place of the Trainer, computed weights and hooks."""
    for name in ("_trainer", "_fabric"):
        owner = module.__dict__.get(name)
        if owner is not None:
            memo[id(owner)] = None
    for value in module.__dict__.values():  # weights that a pre-hook computes anew at every call
        if isinstance(value, Tensor) and value.grad_fn is not None:
            memo[id(value)] = value.detach().clone()
    for name in ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks"):
        memo[id(module.__dict__[name])] = OrderedDict()
    hooks = module._forward_pre_hooks
    computing = {key: hook for key, hook in hooks.items() if _computes_weights(hook)}
    if len(computing) < len(hooks):
        memo[id(hooks)] = OrderedDict((key, copy.deepcopy(hook)) for key, hook in computing.items())


def _computes_weights(hook: object) -> bool:
    """Return whether a forward pre-hook is one of ``torch.nn.utils``, or of a class derived from one (pruning)."""
    return any(cls.__module__.startswith("torch.nn.utils") for cls in type(hook).__mro__)
