"""Where in a model a call comes from: the frame that makes it, and the module whose method that is."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

_PASSED_OVER = frozenset({
    "torch._compile",
    "torch._dynamo.eval_frame",
    "torch._jit_internal",
    "torch._ops",
    "torch.nn.functional",
    "torch.nn.modules.module",
    "torch.overrides",
})


@dataclass(frozen=True)
class Location:
    """Where a call comes from.

    Args:
        frame: The frame that makes it.
        owner: The innermost module whose method is running.
        method: The code of that method.
        chain: All modules of the model whose methods are running, the innermost first.
        checkpointed: Whether ``torch.utils.checkpoint`` stands between the method and the call.
    """

    frame: types.FrameType
    owner: nn.Module
    method: types.CodeType
    chain: tuple[nn.Module, ...]
    checkpointed: bool = False

    @property
    def where(self) -> str:
        """File and line."""
        filename = self.frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
        return f"{filename}:{self.frame.f_lineno}"


def locate(frame: types.FrameType, modules: Mapping[int, Any]) -> Location | None:
    """Find out which module of a model makes a call.

    Args:
        frame: Where to begin; frames of torch's own wrappers are passed over.
        modules: The model's modules, by ``id``.

    Returns:
        The location, ``None`` if no method of one of the modules is running.
    """
    caller: types.FrameType | None = frame
    while caller is not None and caller.f_globals.get("__name__") in _PASSED_OVER:
        caller = caller.f_back
    if caller is None:
        return None
    owners = [(module, code) for module, code in running_modules(caller) if id(module) in modules]
    if not owners:
        return None
    chain = {id(module): module for module, _ in owners}
    return Location(caller, *owners[0], tuple(chain.values()), _is_checkpointed(caller, owners[0][1]))


def _is_checkpointed(frame: types.FrameType | None, method: types.CodeType) -> bool:
    """Say whether a method has a call recomputed in the backward pass, when the method itself runs no more."""
    while frame is not None and frame.f_code is not method:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False


def running_modules(frame: types.FrameType | None) -> Iterator[tuple[nn.Module, types.CodeType]]:
    """Yield the modules whose methods are running: the first arguments of functions that are modules.

    Args:
        frame: Where to begin.

    Yields:
        Modules with the code of the method, the innermost first; of the model or not.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module):
                yield first, code
        frame = frame.f_back
