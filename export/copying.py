"""The evaluation-mode copy that is exported: the caller's module is never touched."""

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.export.errors import ExportError
from lit_gelu.surgery.recognition import faithful_copy

# Whose hooks watch a training: they hold their callback and that the Trainer, and compute nothing.
_OF_TRAINING = frozenset({"lightning", "lightning_fabric", "lit_gelu", "pytorch_lightning"})


def evaluation_copy(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a deep copy on the CPU, in evaluation mode, without what belongs to training."""
    # In the copy, modules wrapped by ``torch.compile`` are unwrapped, a LightningModule has no Trainer, and there are
    # no backward hooks and none of this package's or Lightning's: a monitor's hook holds its callback, the callback the
    # Trainer, and neither belongs in a file. Every other forward hook and pre-hook stays, because it may be a part of
    # what the module computes: ``torch.nn.utils`` computes weights in them, and transformers gathers outputs.
    if not isinstance(model, nn.Module):
        raise ExportError(f"Only a torch.nn.Module can be exported, not {type(model).__name__}.")
    model = getattr(model, "_orig_mod", model)
    memo: dict[int, Any] = {}
    for module in list(model.modules()):
        _leave_out(module, memo)
    hung = _forward_hooks(model)
    watching = {key: hook for hooks in hung for key, hook in hooks.items() if _is_of_training(hook)}
    memo.update((id(hook), None) for hook in watching.values())  # what they hold is not copied
    try:
        for module in list(model.modules()):
            if hasattr(module, "_orig_mod"):
                memo[id(module)] = faithful_copy(module._orig_mod, memo)
        twin = faithful_copy(model, memo)
    except Exception as error:
        raise ExportError(
            f"{type(model).__name__} cannot be copied ({error}). Export works on a deep copy, so that the module stays "
            "as it is: remove attributes and hooks that copy.deepcopy refuses, such as tensors with a gradient "
            "history, locks or open files."
        ) from error
    for hooks in _forward_hooks(twin):
        for key in watching.keys() & hooks.keys():
            del hooks[key]
    return twin.cpu().to(dtype).eval().requires_grad_(False)


@contextlib.contextmanager
def without_hooks_of_training(model: nn.Module) -> Iterator[None]:
    """Take out of a module the forward hooks that its copy does not have; put them back in their order on leaving."""
    before = [(hooks, dict(hooks)) for hooks in _forward_hooks(model)]
    try:
        for hooks, all_of_them in before:
            for key in [key for key, hook in all_of_them.items() if _is_of_training(hook)]:
                del hooks[key]
        yield
    finally:
        for hooks, all_of_them in before:
            after = dict(hooks)  # with those that the module hung on meanwhile, as transformers does at the first call
            hooks.clear()
            hooks.update({**all_of_them, **after})


def _leave_out(module: nn.Module, memo: dict[int, Any]) -> None:
    """Tell deepcopy, through its memo, what to put in place of the Trainer, computed weights and backward hooks."""
    for name in ("_trainer", "_fabric"):
        owner = module.__dict__.get(name)
        if owner is not None:
            memo[id(owner)] = None
    for value in module.__dict__.values():  # weights that a pre-hook computes anew at every call
        if isinstance(value, Tensor) and value.grad_fn is not None:
            memo[id(value)] = value.detach().clone()
    for name in ("_backward_hooks", "_backward_pre_hooks"):
        memo[id(module.__dict__[name])] = OrderedDict()


def _forward_hooks(model: nn.Module) -> list[dict[int, Callable[..., Any]]]:
    """Return the forward hooks and pre-hooks of every module that has any, by their keys, which no two hooks share."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    return [module.__dict__[kind] for module in model.modules() for kind in kinds if module.__dict__[kind]]


def _is_of_training(hook: object) -> bool:
    """Return whether a hook is this package's or Lightning's, or a method of an object that is, such as a callback."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    owner = getattr(hook, "__self__", None)
    classes = () if owner is None or isinstance(owner, nn.Module) else type(owner).__mro__
    places = [getattr(hook, "__module__", None), *(cls.__module__ for cls in classes)]
    return any(str(place).partition(".")[0] in _OF_TRAINING for place in places)
