"""Running a model on the side of its training without leaving a trace."""

import random
import sys
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_DEPTH = 4  # of containers and objects within one attribute; configurations are no deeper
_OF_OTHERS = frozenset({"_trainer", "_fabric"})  # attributes that do not belong to the module
_NO_STATE = (type, types.FunctionType, types.MethodType, types.ModuleType, types.BuiltinFunctionType, Tensor)
_LIBRARIES = frozenset({"lightning", "lightning_fabric", "logging", "pytorch_lightning", "threading"})
_CONTAINERS = (dict, list, set, deque)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation, and on leaving back to exactly the mode that each of its modules had."""
    # The flags are kept one by one: ``model.train()`` afterwards would also turn what was frozen in evaluation mode.
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def evaluation_sandbox(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation without gradients; on leaving, restore every train/eval flag and every buffer.

    Random number generators are the caller's matter, since Python's and numpy's are among them.

    Args:
        model: The model.

    Yields:
        Nothing.

    Example:
        >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
        >>> _ = model[1].eval()
        >>> with evaluation_sandbox(model):
        ...     model.training, torch.is_grad_enabled()
        (False, False)
        >>> [module.training for module in model.modules()]
        [True, True, False]
    """
    buffers = [
        (module, name, buffer, None if buffer is None or is_lazy(buffer) else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        with evaluation_mode(model), torch.no_grad():
            yield
    finally:
        with torch.no_grad():
            for module, name, buffer, content in buffers:
                if buffer is not None and content is not None:
                    buffer.copy_(content)
                module._buffers[name] = buffer


@contextmanager
def preserved_state(model: nn.Module) -> Iterator["State"]:
    """Give a module back, on leaving, what its forward may write: buffers, attributes, and what is in these."""
    state = State(model)
    try:
        yield state
    finally:
        state.restore()


class State:
    """What a module holds beside its parameters, as it was when this was made."""

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[tuple[Any, Any]] = []  # containers and objects, with shallow copies
        self._tensors: list[tuple[Tensor, Tensor]] = []
        parameters = {id(parameter) for parameter in model.parameters()}
        for _, part in _state_of(model):
            if isinstance(part, Tensor):
                if id(part) not in parameters and not is_lazy(part) and not part.is_meta:
                    self._tensors.append((part, part.detach().clone()))
            else:
                self._kept.append((part, _items(part).copy()))

    def is_changed(self) -> bool:
        """Return whether anything was written since."""
        return not (
            all(_same_items(_items(part), before) for part, before in self._kept)
            and all(equal(tensor, before) for tensor, before in self._tensors)
        )

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back; nothing that was not written is touched."""
        for part, before in self._kept:
            now = _items(part)
            if not _same_items(now, before):
                now.clear()
                now.extend(before) if isinstance(now, list | deque) else now.update(before)
        for tensor, before in self._tensors:
            if tensor.shape == before.shape:
                tensor.copy_(before)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return buffers and tensors in attributes, by fully qualified names."""
    parameters = {id(parameter) for parameter in model.parameters()}
    parts = [(name, part) for name, part in _state_of(model) if isinstance(part, Tensor)]
    return {name: part for name, part in parts if id(part) not in parameters and not is_lazy(part)}


def _state_of(model: nn.Module) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for name, module in model.named_modules():
        yield from _parts(name, module, _DEPTH, seen)


def _parts(name: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield a value that may hold state and what is in it, with names; modules within it are no part of it."""
    if id(value) in seen:
        return
    if isinstance(value, Tensor):
        seen.add(id(value))
        yield name, value
        return
    if isinstance(value, tuple):
        inner: Mapping[Any, Any] = dict(enumerate(value))
    elif isinstance(value, _CONTAINERS):
        seen.add(id(value))
        yield name, value
        inner = value if isinstance(value, dict) else dict(enumerate(value))
    elif (
        isinstance(value, _NO_STATE)
        or not hasattr(value, "__dict__")
        or type(value).__module__.partition(".")[0] in _LIBRARIES
    ):
        return
    else:
        seen.add(id(value))
        yield name, value
        inner = vars(value)
    for key, part in [*inner.items()] if depth else ():
        if key not in _OF_OTHERS and not isinstance(part, nn.Module):
            # Those of the module itself are attributes of it by torch's rule, whatever dict they are kept in.
            path = name if key in ("_buffers", "_parameters", "_modules") else f"{name}.{key}" if name else str(key)
            yield from _parts(path, part, depth - 1, seen)


def _items(part: Any) -> Any:
    return part if isinstance(part, _CONTAINERS) else vars(part)


def _same_items(now: Any, before: Any) -> bool:
    if isinstance(now, set):
        return now == before
    if isinstance(now, dict):
        return list(now) == list(before) and all(now[key] is before[key] for key in before)
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def holds_tensors(value: Any) -> bool:
    """Return whether tensors are in a value: in containers, or attributes of objects, that torch does not look into."""
    return any(isinstance(part, Tensor) for _, part in _parts("", value, _DEPTH, set()))


def equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same, NaN included."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())


def devices_of(model: nn.Module) -> set[torch.device]:
    """Return where a model's parameters and buffers are."""
    return {
        tensor.device
        for module in model.modules()  # once: parameters() and buffers() would each go through all of them
        for tensors in (module._parameters, module._buffers)
        for tensor in tensors.values()
        if tensor is not None
    }


@contextmanager
def isolated_random_state(model: nn.Module) -> Iterator[None]:
    """Put back the random number generators of torch (CPU and the model's devices), Python and numpy on leaving."""
    with isolated_generators(devices_of(model)):
        yield


@contextmanager
def isolated_generators(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put back the random number generators of torch (CPU and some devices), Python and numpy on leaving."""
    cuda = [device for device in devices if device.type == "cuda"]
    numpy_random = sys.modules.get("numpy.random")  # if nobody imported it, the model does not draw from it
    python_state, numpy_state = random.getstate(), numpy_random.get_state() if numpy_random else None
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        random.setstate(python_state)
        if numpy_random is not None:
            numpy_random.set_state(numpy_state)


class _EagerPasses:
    """How many passes let compiled modules run as they were written: torch's stance is one for all threads."""

    running = 0
    lock = threading.Lock()
    stance = ExitStack()  # what the last of them undoes


@contextmanager
def as_written() -> Iterator[None]:
    """Let compiled modules run as they were written."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and asking would import it
        yield
        return
    with _EagerPasses.lock:
        if not _EagerPasses.running:
            _EagerPasses.stance.enter_context(torch.compiler.set_stance("force_eager"))
        _EagerPasses.running += 1
    try:
        yield
    finally:
        with _EagerPasses.lock:
            _EagerPasses.running -= 1
            if not _EagerPasses.running:
                _EagerPasses.stance.close()


class _SidePasses:
    """How often a model runs on the side of its training: hooks ask, so as not to take such a pass for training."""

    # A number and not a context variable: what is compiled can read it. Passes of several threads do not end in the
    # order in which they began, so that each adds itself and takes itself away.

    running = 0
    lock = threading.Lock()


def in_side_pass() -> bool:
    """Return whether a model runs on the side of its training: what a hook sees then is no training step."""
    return _SidePasses.running > 0


@contextmanager
def side_pass() -> Iterator[None]:
    """Let `in_side_pass` say that what runs is no training."""
    with _SidePasses.lock:
        _SidePasses.running += 1
    try:
        yield
    finally:
        with _SidePasses.lock:
            _SidePasses.running -= 1
