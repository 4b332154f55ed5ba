"""Whether attributes of two members would make the same code compute the same."""

import math
import random
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_DEEPEST = 6
# Most attributes of a module: what is the same where it is equal, and containers of hooks, which hold nothing mostly.
_PLAIN = frozenset({bool, int, str, bytes, type(None)})
_CONTAINERS = frozenset({dict, OrderedDict, list, tuple, set})
_OF_PARTS = (FunctionType, MethodType, partial, weakref.ref)
_OF_NO_ATTRIBUTE = frozenset({"_parameters", "_buffers", "_modules", "_trainer", "_fabric"})


class Places:
    """Where a member's own modules and tensors are, by identity: what a module holds that is there twice, once.

    Args:
        member: It.
    """

    def __init__(self, member: nn.Module) -> None:
        parts = list(member.named_modules())
        children = [(path, name, child) for path, part in parts for name, child in part._modules.items()]
        tensors = [
            (path, name, tensor)
            for path, part in parts
            for held in (part._parameters, part._buffers)
            for name, tensor in held.items()
        ]
        self.modules, self.tensors = _names([("", "", member), *children]), _names(tensors)

    def has(self, value: Any) -> bool:
        """Tell whether something is a part of the member."""
        return id(value) in self.modules or id(value) in self.tensors


def _names(held: Iterable[tuple[str, str, Any]]) -> Mapping[int, frozenset[str]]:
    found: dict[int, set[str]] = {}
    for path, name, value in held:
        if value is not None:
            found.setdefault(id(value), set()).add(".".join(filter(None, (path, name))))
    return {number: frozenset(names) for number, names in found.items()}


def is_plain(value: Any) -> bool:
    """Tell whether a value is a number, a text or an empty container."""
    return type(value) in _PLAIN or (type(value) in _CONTAINERS and not value)


def plainly_same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same number or text, or empty containers of a kind."""
    return type(one) is type(other) and is_plain(one) and bool(one == other)


def same(one: Any, other: Any, places: tuple[Places, Places] | None = None) -> bool:
    """Tell whether two attributes would make the same code compute the same; what cannot be told is another.

    Args:
        one: That of a member.
        other: That of another one.
        places: What these members hold themselves: it is compared by where it is, because it is compared there.

    Returns:
        Whether they are the same.
    """
    return _Sameness(places).same(one, other)


class _Sameness:
    def __init__(self, places: tuple[Places, Places] | None) -> None:
        self.places = places

    def same(self, one: Any, other: Any, depth: int = 0) -> bool:
        if is_plain(one):
            return type(one) is type(other) and bool(one == other)
        return self._same(one, other, depth)

    def _same(self, one: Any, other: Any, depth: int) -> bool:
        """Compare what may hold something."""
        own = self._is_own(one, other)
        if own is not None:
            return own
        if one is other:
            return True
        if type(one) is not type(other) or depth > _DEEPEST:
            return False
        deeper = partial(self.same, depth=depth + 1)
        if isinstance(one, nn.Module):
            return self._same_modules(one, other, deeper)
        for kinds, equal in _EQUAL.items():
            if isinstance(one, kinds):
                return equal(one, other)
        if isinstance(one, Mapping):
            return list(one) == list(other) and all(deeper(one[key], other[key]) for key in one)
        if isinstance(one, list | tuple):
            return len(one) == len(other) and all(map(deeper, one, other))
        if isinstance(one, _OF_PARTS):
            return deeper(_parts(one), _parts(other))
        return _same_objects(one, other, deeper)

    def _is_own(self, one: Any, other: Any) -> bool | None:
        """Compare what members hold themselves; ``None`` if they do not."""
        if self.places is None or not isinstance(one, nn.Module | Tensor):
            return None
        kind = "modules" if isinstance(one, nn.Module) else "tensors"
        mine, its = (
            getattr(places, kind).get(id(value)) for places, value in zip(self.places, (one, other), strict=True)
        )
        if mine is None and its is None:
            return None
        return bool(mine == its)

    def _same_modules(self, one: nn.Module, other: nn.Module, deeper: Callable[[Any, Any], bool]) -> bool:
        """Compare modules that no member has among its own: with all that they hold."""
        mine, its = dict(one.named_modules()), dict(other.named_modules())
        if list(mine) != list(its):
            return False
        for path, part in mine.items():
            own = self._is_own(part, its[path])
            if own is None:
                attributes = (_attributes(part), _attributes(its[path]))
                own = type(part) is type(its[path]) and deeper(*attributes)
            if not own:
                return False
        return True


def _attributes(module: nn.Module) -> dict[str, Any]:
    plain = {name: value for name, value in vars(module).items() if name not in _OF_NO_ATTRIBUTE}
    return {**plain, "tensors": {**module._parameters, **module._buffers}}


def _same_tensors(one: Tensor, other: Tensor) -> bool:
    same_kind = one.shape == other.shape and one.dtype == other.dtype and one.requires_grad == other.requires_grad
    return same_kind and bool(torch.equal(one, other))


def _same_arrays(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.hasobject:
        return same(one.tolist(), other.tolist())
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM"))


def _same_floats(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _by_state(state_of: Callable[[Any], Any]) -> Callable[[Any, Any], bool]:
    """Compare generators of random numbers by what they would draw next, which is in no attribute."""
    return lambda one, other: same(state_of(one), state_of(other))


_EQUAL: Mapping[type | tuple[type, ...], Callable[[Any, Any], bool]] = {
    Tensor: _same_tensors,
    np.ndarray: _same_arrays,
    (float, np.floating): _same_floats,
    random.Random: _by_state(lambda generator: generator.getstate()),  # noqa: S311 - no secrets
    np.random.Generator: _by_state(lambda generator: generator.bit_generator.state),
    np.random.BitGenerator: _by_state(lambda generator: generator.state),
    np.random.RandomState: _by_state(lambda generator: generator.get_state(legacy=False)),
    torch.Generator: _by_state(lambda generator: (generator.device, generator.get_state())),
}


def _parts(function: Any) -> tuple[Any, ...]:
    """Return what a function computes with: its code, and what it holds; or what a reference is to."""
    if isinstance(function, weakref.ref):
        return (function(),)
    if isinstance(function, partial):
        return function.func, function.args, function.keywords
    if isinstance(function, MethodType):
        return function.__func__, function.__self__
    return function.__code__, function.__defaults__, function.__kwdefaults__, _held(function)


def _held(function: FunctionType) -> list[Any]:
    """Return what a function has from around it."""
    return [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]


def _same_objects(one: Any, other: Any, deeper: Callable[[Any, Any], bool]) -> bool:
    equality: Any = type(one).__eq__
    try:
        if equality is not object.__eq__:
            answer = one == other
            return isinstance(answer, bool | np.bool_) and bool(answer)
        return deeper(_content(one), _content(other))
    except Exception:  # noqa: BLE001 - of anybody's, such as an array of answers: what cannot be told is another
        return False


def _content(value: Any) -> Any:
    """Return all that an object holds, as far as it can be seen: attributes, and what pickle would keep of others."""
    kind: Any = type(value)
    attributes = getattr(value, "__dict__", {})
    reduced = value.__reduce_ex__(2)  # raises an error where something is out of Python's sight
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return {"": reduced, **attributes}
    slots = reduced[2][1] if isinstance(reduced[2], tuple) else {}
    return {**attributes, **(slots or {})}


def closes_over(value: Any, places: Places) -> bool:
    """Tell whether functions in an attribute have a part of a member from around them: its copy's have the same one."""
    # Bound methods and partial functions are copied with what they hold.
    return not is_plain(value) and any(
        any(places.has(held) for held in _reached(around))
        for function in _reached(value)
        if isinstance(function, FunctionType)
        for around in (*_held(function), function.__defaults__, function.__kwdefaults__)
    )


def holds_tensor(value: Any, places: Places) -> bool:
    """Tell whether a member's own tensor is in an attribute: code that reads it is given none in its place."""
    return not is_plain(value) and any(id(held) in places.tensors for held in _reached(value))


def _reached(value: Any, depth: int = 0) -> Iterator[Any]:
    """Go through a value, and what containers and functions in it hold."""
    yield value
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif isinstance(value, _OF_PARTS):
        inner = _parts(value)
    for held in inner if depth < _DEEPEST else ():
        yield from _reached(held, depth + 1)
