"""What is in the lists, dictionaries and plain objects that hang on a module, and how it is put back."""

import collections
import enum
import operator
import random
import sys
from collections.abc import Iterable
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

UNCHANGING = frozenset({
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.Size,
    FunctionType,
    MethodType,
})
"""Types whose values cannot be changed in place; most attributes of modules are of one."""

LOOKED_INTO = 1_000
"""Elements of the largest container whose elements are looked into."""

COPIED = 10_000
"""Elements of the largest list or dictionary of which a copy is kept."""

_ARRAY_BYTES = 2**20
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_BAGS = (SimpleNamespace, collections.UserDict, collections.UserList)
_NOT_LOOKED_INTO = frozenset({
    *("torch", "torchmetrics", "torchvision", "lightning", "lightning_fabric", "lightning_utilities"),
    *("pytorch_lightning", "numpy"),
    *sys.stdlib_module_names,
})
"""Top-level packages whose classes are not taken for plain objects: what changes in theirs is not a model's state."""


class Contents:
    """What is in the containers and plain objects that can be reached from some values, so that it can be put back.

    Containers are dictionaries, lists, tuples, sets and deques; a plain object is one with a ``__dict__`` of a class
    that is not Python's, torch's or Lightning's, such as a meter. Containers are followed wherever they are, plain
    objects down to the containers in their ``__dict__``, not to further plain objects. Generators of random numbers and
    numpy arrays up to 1 MiB are kept as well.

    Attributes:
        modules: Modules that stand in containers.
        tensors: Tensors that do, leaves only. Their values are the business of `WriteGuard`.

    Example:
        >>> history = {"loss": [0.5]}
        >>> contents = Contents()
        >>> contents.keep(history)
        >>> history["loss"].append(0.4)
        >>> history["step"] = 1
        >>> contents.restore()
        >>> history
        {'loss': [0.5]}
    """

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.tensors: list[Tensor] = []
        self._kept: list[_Content] = []
        self._seen: set[int] = set()

    def keep(self, value: Any) -> None:
        """Take note of what is in a value.

        Args:
            value: An attribute of a module.
        """
        found = [(value, False)]
        while found:
            value, in_object = found.pop()
            if type(value) in UNCHANGING or id(value) in self._seen:
                continue
            if isinstance(value, nn.Module):
                self.modules.append(value)
            elif isinstance(value, Tensor):
                if value.is_leaf:
                    self._seen.add(id(value))
                    self.tensors.append(value)
            else:
                self._seen.add(id(value))
                if (content := _content_of(value)) is not None:
                    self._kept.append(content)
                found += [(child, in_object) for child in _changing_children(value)]
                if not in_object and _is_plain_object(value):
                    found.append((value.__dict__, True))

    def restore(self) -> None:
        """Let everything hold what it held, in the very same containers."""
        for content in self._kept:
            content.restore()


class _Content:
    """What is in a list, dictionary, set, array or generator; of a long list or dictionary, its length."""

    def __init__(self, owner: Any, kept: Any) -> None:
        self._owner, self._kept = owner, kept

    def restore(self) -> None:
        owner, kept = self._owner, self._kept
        if isinstance(owner, dict):
            _restore_dict(owner, kept)
        elif isinstance(owner, (list, collections.deque)):
            if isinstance(kept, int):
                del owner[kept:]  # type: ignore[arg-type]  # a list: only of these the length alone is kept
            elif not _identical(owner, kept):
                owner.clear()
                owner.extend(kept)
        elif isinstance(owner, set):
            if owner != kept:
                owner.clear()
                owner.update(kept)
        elif isinstance(owner, torch.Generator):
            owner.set_state(kept)
        elif isinstance(owner, random.Random):  # noqa: S311 - the model's own, not ours
            owner.setstate(kept)
        elif _is_numpy(owner, "random", "Generator"):
            owner.bit_generator.state = kept
        else:
            owner[...] = kept


def _restore_dict(owner: dict[Any, Any], kept: dict[Any, Any] | int) -> None:
    """Let a dictionary hold what it held, in the order in which it did."""
    if isinstance(kept, int):
        while len(owner) > kept:
            owner.popitem()
    elif not _identical(owner.keys(), kept.keys()):
        owner.clear()
        owner.update(kept)
    elif not _identical(owner.values(), kept.values()):
        for key, value in kept.items():  # not cleared: another thread may read the object whose dictionary this is
            if owner[key] is not value:
                owner[key] = value


def _content_of(value: Any) -> _Content | None:
    """Return what is to be kept of a value that can be changed in place; ``None`` of one that cannot."""
    if isinstance(value, (dict, list)):
        kept: Any = len(value) if len(value) > COPIED else dict(value) if isinstance(value, dict) else list(value)
        return _Content(value, kept)
    if isinstance(value, collections.deque):
        return _Content(value, list(value))
    if isinstance(value, set):
        return _Content(value, set(value))
    if isinstance(value, torch.Generator):
        return _Content(value, value.get_state())
    if isinstance(value, random.Random):  # noqa: S311 - the model's own, not ours
        return _Content(value, value.getstate())
    if _is_numpy(value, "random", "Generator"):
        return _Content(value, value.bit_generator.state)
    if _is_numpy(value, "", "ndarray") and value.flags.writeable and value.nbytes <= _ARRAY_BYTES:
        return _Content(value, value.copy())
    return None


def _changing_children(value: Any) -> Iterable[Any]:
    """Return the elements of a container that can be changed in place, if it is no longer than is looked into."""
    if not isinstance(value, _CONTAINERS) or len(value) > LOOKED_INTO:
        return ()
    children = value.values() if isinstance(value, dict) else value
    if UNCHANGING.issuperset(map(type, children)):  # of nearly all: a tuple of sizes, a list of losses
        return ()
    return [child for child in children if type(child) not in UNCHANGING]


def is_of_library(value: Any) -> bool:
    """Return whether a value's class is Python's, torch's, Lightning's, torchmetrics' or numpy's.

    Args:
        value: Anything.

    Returns:
        Whether it is.

    Example:
        >>> is_of_library(nn.Linear(1, 1)), is_of_library(type("Meter", (), {"__module__": "meters"})())
        (True, False)
    """
    return type(value).__module__.partition(".")[0] in _NOT_LOOKED_INTO


def _is_plain_object(value: Any) -> bool:
    """Return whether a value is an object of the user's, or of a package of models, that holds its state in itself."""
    if isinstance(value, (type, enum.Enum)) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return isinstance(value, _BAGS) or not is_of_library(value)


def _is_numpy(value: Any, part: str, name: str) -> bool:
    """Return whether a value is of a class of numpy's, which is not imported here."""
    module = sys.modules.get(f"numpy.{part}" if part else "numpy")
    return module is not None and isinstance(value, getattr(module, name))


def _identical(some: Any, others: Any) -> bool:
    """Return whether two collections hold the same objects in the same order."""
    return len(some) == len(others) and all(map(operator.is_, some, others))
