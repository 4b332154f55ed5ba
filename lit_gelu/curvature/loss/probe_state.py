"""What running a model changes in it besides its output, and how it is as before."""

import collections
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)
_PLAIN = frozenset({type(None), bool, int, float, str})
_UNCHANGING = _PLAIN | {tuple, torch.dtype, torch.device, torch.Size}


class ModuleState:
    """The state of a model that a forward pass may change, kept so that any number of passes find the same.

    `rewind` puts **copies** of the buffers and of the tensors among the attributes in place of the originals, so that
    what a pass changes in place (running means, the states of metrics) is the copy, and graphs of an earlier pass keep
    theirs; other attributes get the value they had, and lists, dictionaries, sets and generators their contents.
    `restore` puts the very originals back: nothing has touched them. Train/eval flags and ``.grad`` are put back, too.

    Modules that stand in plain lists and dictionaries (metrics often do) are included.

    Args:
        model: Any module.

    Attributes:
        modules: All of its modules, itself included.

    Example:
        >>> model = nn.BatchNorm1d(2)
        >>> state = ModuleState(model)
        >>> for _ in range(3):
        ...     state.rewind()
        ...     _ = model(torch.ones(4, 2))
        ...     print(model.num_batches_tracked.item())
        1
        1
        1
        >>> state.restore()
        >>> model.num_batches_tracked.item()
        0
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(_all_modules(model))
        self._flags = [module.training for module in self.modules]
        self._buffers = [dict(module._buffers) for module in self.modules]
        self._attributes = [_Attributes(module) for module in self.modules]
        self._gradients = [(p, p.grad) for module in self.modules for p in module._parameters.values() if p is not None]

    def rewind(self) -> None:
        """Let the next pass find what the first one found."""
        copies: dict[int, Tensor] = {}  # a buffer that two modules share stays shared
        for module, buffers in zip(self.modules, self._buffers, strict=True):
            module._buffers.clear()
            for name, buffer in buffers.items():
                if buffer is not None and id(buffer) not in copies:
                    copies[id(buffer)] = buffer.detach().clone()
                module._buffers[name] = None if buffer is None else copies[id(buffer)]
        for attributes in self._attributes:
            attributes.rewind()

    def restore(self) -> None:
        """Put everything back."""
        for module, flag, buffers in zip(self.modules, self._flags, self._buffers, strict=True):
            module.training = flag
            module._buffers.clear()
            module._buffers.update(buffers)
        for attributes in self._attributes:
            attributes.restore()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient


class _Attributes:
    """The attributes of one module that are neither parameters, buffers nor modules."""

    def __init__(self, module: nn.Module) -> None:
        self._own = module.__dict__
        self._values = {name: value for name, value in self._own.items() if name not in _OF_EVERY_MODULE}
        self._contents = [content for value in self._values.values() if (content := _content_of(value)) is not None]
        self._copies: dict[str, Tensor] = {}

    def rewind(self) -> None:
        """Give every attribute its value, tensors as copies."""
        self._rebind()
        for name, value in self._values.items():
            if _is_plain_tensor(value):
                copied = self._copies.get(name)
                if copied is None or copied._version != 0:  # changed in place
                    copied = self._copies[name] = value.detach().clone()
                self._own[name] = copied

    def restore(self) -> None:
        """Give every attribute its value, the very object."""
        self._rebind()
        self._copies.clear()

    def _rebind(self) -> None:
        for name in [name for name in self._own if name not in _OF_EVERY_MODULE and name not in self._values]:
            del self._own[name]
        self._own.update(self._values)
        for content in self._contents:
            content.restore()


class _Content:
    """What is in a list, dictionary, set or generator."""

    def __init__(self, owner: Any, kept: Any) -> None:
        self._owner, self._kept = owner, kept

    def restore(self) -> None:
        owner, kept = self._owner, self._kept
        if isinstance(owner, torch.Generator):
            owner.set_state(kept)
        elif isinstance(owner, random.Random):  # noqa: S311 - the model's own, not ours
            owner.setstate(kept)
        elif _is_numpy_generator(owner):
            owner.bit_generator.state = kept
        elif isinstance(owner, dict):
            if not _identical(owner.keys(), kept.keys()) or not _identical(owner.values(), kept.values()):
                owner.clear()
                owner.update(kept)
        elif isinstance(owner, set):
            if owner != kept:
                owner.clear()
                owner.update(kept)
        elif not _identical(owner, kept):  # a list or a deque
            owner.clear()
            owner.extend(kept)


def _content_of(value: Any) -> _Content | None:
    """Return what is to be kept of a value that can be changed in place; ``None`` of one that cannot."""
    if type(value) in _UNCHANGING:
        return None
    if isinstance(value, torch.Generator):
        return _Content(value, value.get_state())
    if isinstance(value, random.Random):  # noqa: S311 - the model's own, not ours
        return _Content(value, value.getstate())
    if _is_numpy_generator(value):
        return _Content(value, value.bit_generator.state)
    if isinstance(value, (list, collections.deque)):
        return _Content(value, list(value))
    if isinstance(value, dict):
        return _Content(value, dict(value))
    return _Content(value, set(value)) if isinstance(value, set) else None


def _is_numpy_generator(value: Any) -> bool:
    """Return whether a value is a generator of numpy's, which is not imported here."""
    return "numpy.random" in sys.modules and isinstance(value, sys.modules["numpy.random"].Generator)


def _is_plain_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of its own: no parameter, nor computed from one (as old weight norm does)."""
    return isinstance(value, Tensor) and not value.requires_grad and not isinstance(value, nn.Parameter)


def _identical(some: Any, others: Any) -> bool:
    """Return whether two collections hold the same objects in the same order."""
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _all_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Go through a model's modules, those in plain lists, tuples and dictionaries included."""
    seen: set[int] = set()
    found = [model]
    while found:
        module = found.pop()
        if id(module) in seen:  # by identity: hashing a metric costs more than everything else here
            continue
        seen.add(id(module))
        yield module
        found += [child for child in module._modules.values() if child is not None]
        for name, value in module.__dict__.items():
            if name in _OF_EVERY_MODULE or type(value) in _PLAIN:
                continue
            if isinstance(value, (list, tuple, dict)):
                held = value.values() if isinstance(value, dict) else value
                found += [element for element in held if isinstance(element, nn.Module)]


def seed_random_state(seed: int, devices: set[torch.device]) -> None:
    """Set the generators of Python, numpy and torch (CPU and the given CUDA devices) from a number.

    Args:
        seed: Any integer.
        devices: Devices of the model.
    """
    seed %= 2**63
    random.seed(seed)
    if "numpy.random" in sys.modules:  # if nobody imported it, the model does not draw from it
        sys.modules["numpy.random"].seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    for device in devices:
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[index].manual_seed(seed)
