"""The evaluation-mode copy that is exported: the caller's module is never touched."""

import contextlib
import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lit_gelu.export.errors import ExportError
from lit_gelu.surgery.recognition import faithful_copy
from lit_gelu.surgery.sites import without_wrappers

# Whose hooks watch a training: they hold their callback and that the Trainer, and compute nothing.
_OF_TRAINING = frozenset({"lightning", "lightning_fabric", "lit_gelu", "pytorch_lightning"})


def evaluation_copy(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a deep copy on the CPU, in evaluation mode, without what belongs to training."""
    # In the copy, modules wrapped by ``torch.compile`` are unwrapped, a LightningModule has no Trainer, and there are
    # no backward hooks and none of this package's or Lightning's: a monitor's hook holds its callback, the callback the
    # Trainer, and neither belongs in a file. Every other forward hook and pre-hook stays, because it may be a part of
    # what the module computes: ``torch.nn.utils`` computes weights in them, and transformers gathers outputs.
    require_copyable(model)
    model = without_wrappers(model)
    memo: dict[int, Any] = {}
    for module in list(model.modules()):
        _leave_out(module, memo)
    hung = _forward_hooks(model)
    watching = {key: hook for hooks in hung for key, hook in hooks.items() if _is_of_training(hook)}
    memo.update((id(hook), None) for hook in watching.values())  # what they hold is not copied
    try:
        for module in list(model.modules()):
            wrapped = without_wrappers(module)
            if wrapped is not module:
                memo[id(module)] = faithful_copy(wrapped, memo)
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
    return _converted(twin.cpu(), dtype).eval().requires_grad_(False)


def require_copyable(model: object) -> None:
    """Refuse what is no module, what TorchScript made, and tensors without values."""
    if not isinstance(model, nn.Module):
        raise ExportError(f"Only a torch.nn.Module can be exported, not {type(model).__name__}.")
    name = type(model).__name__
    scripted = next((where for where, part in model.named_modules() if isinstance(part, torch.jit.ScriptModule)), None)
    if scripted is not None:
        part = f"its part {scripted!r}" if scripted else "it"
        raise ExportError(
            f"{name} cannot be exported: {part} was made by torch.jit.trace or torch.jit.script, whose copies and "
            "forward are TorchScript's. Give the module that it was made from."
        )
    for where, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise ExportError(f"{name} cannot be exported: {where!r} has no shape yet. Call the module once first.")
        if tensor.is_meta:
            raise ExportError(
                f"{name} cannot be exported: {where!r} is on the meta device, which holds no values. Load them first, "
                "such as by model.to_empty(device='cpu') and model.load_state_dict(...), or "
                "load_state_dict(..., assign=True)."
            )


def _converted(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a module in a dtype; complex tensors stay complex, which ``Module.to`` would cut to their real part."""
    kept: list[tuple[dict[str, Any], str, Tensor]] = []
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            found = [(name, t) for name, t in tensors.items() if t is not None and t.is_complex()]
            for name, tensor in found:
                kept.append((tensors, name, tensor))
                tensors[name] = None
    model = model.to(dtype)
    in_complex = torch.complex128 if dtype == torch.float64 else torch.complex64  # there is none to speak of in 16 bit
    once: dict[int, Tensor] = {}  # a tensor may be in two places
    for place, name, tensor in kept:
        is_parameter = isinstance(tensor, nn.Parameter)
        twin = tensor.detach().to(in_complex)
        place[name] = once.setdefault(id(tensor), nn.Parameter(twin, requires_grad=False) if is_parameter else twin)
    return model


@contextlib.contextmanager
def without_callers_autocast() -> Iterator[None]:
    """Turn off the autocast that surrounds a call, as Lightning's mixed precision does; forward's own still applies."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = {"cpu"} if accelerator is None else {"cpu", accelerator.type}
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


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
