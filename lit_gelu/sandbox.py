"""Running a model on the side of its training: on which sample, on which copy, and without leaving a trace."""

import copy
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from lit_gelu.errors import ArgumentError, shown

_DEPTH = 4  # of containers and objects within one attribute; configurations are no deeper
_NO_STATE = (type, types.FunctionType, types.MethodType, types.ModuleType, types.BuiltinFunctionType, str, int, float)
_LIBRARIES = frozenset({"lightning", "lightning_fabric", "lit_gelu", "logging", "pytorch_lightning", "threading"})
_CONTAINERS = (dict, list, set, deque)
_REGISTERED = frozenset({"_buffers", "_modules", "_parameters"})
# Attributes that are not the module's own, and hooks of which calls of forward change none.
_OF_TORCH = frozenset({"_fabric", "_trainer", *vars(nn.Module())}) - {
    *_REGISTERED,
    "_forward_hooks",
    "_forward_pre_hooks",
}

EXAMPLE = "example_input_array"
Module = TypeVar("Module", bound=nn.Module)


def input_sample_of(model: Any, input_sample: Any = None) -> Any:
    """Return what to call a model with: the sample given, else its ``example_input_array``, else ``None``."""
    return getattr(model, EXAMPLE, None) if is_left_to_model(input_sample) else input_sample


def is_left_to_model(input_sample: Any) -> bool:
    """Return whether no sample is given, or the attribute's name, which a configuration file may have."""
    if isinstance(input_sample, str) and input_sample != EXAMPLE:
        raise ArgumentError(
            f"input_sample={shown(input_sample)} is not accepted. Give what forward takes: a tensor, a tuple of its "
            f'arguments or a dict of them by name; or "{EXAMPLE}", or nothing, for the module\'s own.'
        )
    return input_sample is None or isinstance(input_sample, str)


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
        parts = state_of(model)
        self._tensors = [(part, part.detach().clone()) for part in parts.values() if isinstance(part, Tensor)]
        mutable = [part for part in parts.values() if not isinstance(part, Tensor)]
        live: list[Any] = [part if isinstance(part, _CONTAINERS) else vars(part) for part in mutable]
        self._items = [(items, items.copy()) for items in live]

    def _written(self) -> list[tuple[Any, Any]]:
        """Return the containers and attributes that hold other objects than they did, and what they held."""
        written = []
        for now, before in self._items:
            is_dict = isinstance(now, dict)
            kept = [*map(id, now.values() if is_dict else now)] == [*map(id, before.values() if is_dict else before)]
            if not kept or (is_dict and [*now] != [*before]):
                written.append((now, before))
        return written

    def is_changed(self) -> bool:
        """Return whether anything was written since."""
        return bool(self._written()) or not all(equal(tensor, before) for tensor, before in self._tensors)

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back; nothing that was not written is touched."""
        for now, before in self._written():
            now.clear()
            now.extend(before) if isinstance(now, list | deque) else now.update(before)
        for tensor, before in self._tensors:
            if tensor.shape == before.shape:
                tensor.copy_(before)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return buffers and tensors in attributes, by fully qualified names."""
    return {name: part for name, part in state_of(model).items() if isinstance(part, Tensor)}


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return what a forward may write but parameters, by name: tensors, containers, objects with attributes."""
    no_state = {id(parameter) for parameter in model.parameters()}
    parts = _inside((name, module, 0) for name, module in model.named_modules())
    no_state |= {id(part) for part in parts.values() if isinstance(part, Tensor) and (is_lazy(part) or part.is_meta)}
    return {name: part for name, part in parts.items() if id(part) not in no_state}


def _inside(waiting: Iterable[tuple[str, Any, int]]) -> dict[str, Any]:
    """Return values that may hold state and what is in them, by name; modules in them are no part of them."""
    parts: dict[str, Any] = {}
    seen: set[int] = set()
    stack = [*waiting]
    while stack:
        name, value, depth = stack.pop()
        if id(value) in seen or depth > _DEPTH or isinstance(value, _NO_STATE):
            continue
        seen.add(id(value))
        inner: dict[Any, Any] = {}
        is_module = isinstance(value, nn.Module)
        if isinstance(value, dict):
            inner = value
        elif isinstance(value, list | tuple | deque | set):
            inner = dict(enumerate(value))
        elif not isinstance(value, Tensor):
            of_library = not is_module and type(value).__module__.partition(".")[0] in _LIBRARIES
            if of_library or not hasattr(value, "__dict__"):
                continue
            inner = vars(value)
        if not isinstance(value, tuple):
            parts[f"{name} {id(value)}" if name in parts else name] = value
        for key, part in inner.items():
            if not isinstance(part, nn.Module) and not (is_module and key in _OF_TORCH):
                # What is in torch's own dicts of a module is an attribute of it.
                path = name if is_module and key in _REGISTERED else f"{name}.{key}" if name else str(key)
                stack.append((path, part, depth + 1))
    return parts


def holds_tensors(value: Any) -> bool:
    """Return whether tensors are in a value: in containers, or attributes of objects, that torch does not look into."""
    return any(isinstance(part, Tensor) for part in _inside([("", value, 0)]).values())


def leaves_with_paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the leaves of a tree and the keys that lead to them, in types that were registered without keys too."""
    # torch.utils._pytree.tree_flatten_with_path fails for those, such as the outputs of transformers 5.0.
    children = pytree.tree_leaves(tree, is_leaf=lambda node: node is not tree)
    if len(children) == 1 and children[0] is tree:
        yield path, tree
        return
    try:
        keys = [key for (key,), _ in pytree.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)[0]]
    except ValueError:
        by_name = isinstance(tree, Mapping) and len(tree) == len(children)
        keys = [*(map(pytree.MappingKey, tree) if by_name else map(pytree.SequenceKey, range(len(children))))]
    for key, child in zip(keys, children, strict=True):
        yield from leaves_with_paths(child, (*path, key))


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


class _Passes:
    """What holds for the whole process while passes run: those of several threads may end in any order."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.running = 0  # a number and not a context variable: what is compiled can read it
        self._lock = threading.Lock()
        self._begin = begin  # before the first of them
        self._end = ExitStack()  # after the last

    @contextmanager
    def one_more(self) -> Iterator[None]:
        with self._lock:
            if not self.running:
                self._end.enter_context(self._begin())
            self.running += 1
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1
                if not self.running:
                    self._end.close()


_eager_passes = _Passes(lambda: torch.compiler.set_stance("force_eager"))
_side_passes = _Passes()


def as_written() -> AbstractContextManager[None]:
    """Let compiled modules run as they were written."""
    # If nothing is compiled, asking would import torch._dynamo.
    return _eager_passes.one_more() if "torch._dynamo" in sys.modules else nullcontext()


def side_pass() -> AbstractContextManager[None]:
    """Let `in_side_pass` say that what runs is no training."""
    return _side_passes.one_more()


def in_side_pass() -> bool:
    """Return whether a model runs on the side of its training: what a hook sees then is no training step."""
    return _side_passes.running > 0


def faithful_copy(model: Module, memo: dict[int, Any] | None = None) -> Module:
    """Return a deep copy in which the same children are hidden as in the original, and no others."""
    memo = {} if memo is None else memo
    twin = copy.deepcopy(model, memo)
    for module in model.modules():
        copied = memo.get(id(module))
        if type(copied) is type(module):
            for name in copied._modules.keys() & (vars(copied).keys() - vars(module).keys()):
                del vars(copied)[name]
    return twin
