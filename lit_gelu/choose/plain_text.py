"""What a value is made of, as text that is the same at every start: by it a call knows the runs of an earlier one."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from lit_gelu.choose.run_files import digest

_EXACT = (str, bytes, int, float, complex, bool, type(None), type(...), torch.dtype, torch.device)
_LONGEST = 2000  # characters of a text, of which more is told by a digest


def told(value: Any, untold: list[str]) -> str:
    """Return what a value is made of: its type and all that it holds, tensors and arrays by a digest.

    An object is told by what ``copy`` and ``pickle`` would keep of it, a function by its code, its defaults, what it
    encloses, and the plain constants that it reads.

    Args:
        value: It.
        untold: Is given the type of what has no such content: a lock, an open file, a generator.
    """
    try:
        return _Teller(untold).tell(value)
    except RecursionError:
        untold.append(named(type(value)))
        return named(type(value))


def named(value: Any) -> str:
    """Return the full name of a class or a function."""
    inside = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__name__)
    return str(name) if inside in {None, "builtins"} else f"{inside}.{name}"


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, text, or a collection of such."""
    if type(value) in {list, tuple, set, frozenset}:
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(is_plain(key) and is_plain(entry) for key, entry in value.items())
    return type(value) in _EXACT


class _Teller:
    """Tells values within values: each once, and one within itself by how far above it is."""

    def __init__(self, untold: list[str]) -> None:
        self.untold = untold
        self.above: list[int] = []
        self.known: dict[int, tuple[Any, str]] = {}  # with the value: another one would get the number of one that went

    def tell(self, value: Any) -> str:
        """Return a value as text."""
        if type(value) in _EXACT:
            return _short(repr(value))
        if id(value) in self.known:
            return self.known[id(value)][1]
        if id(value) in self.above:
            return f"<{len(self.above) - self.above.index(id(value))} above>"
        self.above.append(id(value))
        text = _short(self._collection(value) or self._named(value) or self._object(value))
        self.above.pop()
        self.known[id(value)] = value, text
        return text

    def _collection(self, value: Any) -> str:
        """Return what is no object of a class with a content of its own; empty for all else."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if type(value) is np.ndarray and value.dtype != object:
            return f"array({list(value.shape)}, {value.dtype}, {_hashed(np.ascontiguousarray(value).tobytes())})"
        if type(value) in {list, tuple}:
            return f"[{self._several(value)}]"
        if type(value) in {set, frozenset}:
            return f"{{{', '.join(sorted(map(self.tell, value)))}}}"
        if type(value) is dict:
            return f"{{{', '.join(sorted(self._pairs(value.items(), ': ')))}}}"
        return ""

    def _tensor(self, value: torch.Tensor) -> str:
        try:
            content = digest(value)
        except (NotImplementedError, RuntimeError, TypeError, ValueError):  # sparse, or without any numbers yet
            return self._by_type(value)
        return f"tensor({list(value.shape)}, {value.dtype}, {content})"

    def _named(self, value: Any) -> str:
        """Return what a name tells, with what a function holds; empty for all else."""
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, type):
            return named(value)
        if isinstance(value, MethodType):
            return f"{self.tell(value.__self__)}.{self.tell(value.__func__)}"
        return self._function(value) if isinstance(value, FunctionType) else ""

    def _function(self, value: FunctionType) -> str:
        codes = list(_codes(value.__code__))
        read = {name: value.__globals__.get(name) for code in codes for name in code.co_names}
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        held = {
            "code": _hashed(" ".join(map(self._code, codes))),
            "defaults": [value.__defaults__, value.__kwdefaults__],
            **{name: entry for name, entry in sorted(read.items()) if entry is not None and is_plain(entry)},
            **{name: _held(cell) for name, cell in cells},
        }
        return f"{named(value)}({', '.join(self._pairs(held.items(), '='))})"

    def _code(self, code: CodeType) -> str:
        documentation = code.co_consts[:1] if isinstance(next(iter(code.co_consts), None), str) else ()
        constants = [entry for entry in code.co_consts[len(documentation) :] if not isinstance(entry, CodeType)]
        return self.tell([code.co_code, code.co_names, constants])

    def _object(self, value: Any) -> str:
        """Return an object as its type and what is kept of it where it is copied."""
        try:
            kept = value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 - of any class: it says that there is no content that could be kept
            return self._by_type(value)
        if isinstance(kept, str):  # the name of something of which there is one
            return f"{named(type(value))} {kept}"
        make, arguments, state, entries, pairs = (*kept, None, None, None)[:5]
        parts = self._arguments(make, arguments)
        for part in state if isinstance(state, tuple) and _is_newobj(make) else [state]:  # vars, and slots
            if isinstance(part, Mapping) and all(isinstance(name, str) for name in part):
                parts += sorted(f"{name}={self.tell(entry)}" for name, entry in part.items())
            elif part is not None:
                parts.append(self.tell(part))
        parts += [self.tell(entry) for entry in entries or ()]
        parts += self._pairs(pairs or (), ": ")
        return f"{named(type(value))}({', '.join(parts)})"

    def _arguments(self, make: Any, arguments: Sequence[Any]) -> list[str]:
        """Return what an object is made of anew by, without its class, which is told already."""
        if _is_newobj(make):
            return [self.tell(each) for each in arguments[1:]]
        return [self.tell(each) for each in arguments]

    def _pairs(self, pairs: Iterable[tuple[Any, Any]], between: str) -> list[str]:
        return [f"{key if between == '=' else self.tell(key)}{between}{self.tell(entry)}" for key, entry in pairs]

    def _several(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self.tell, values))

    def _by_type(self, value: Any) -> str:
        self.untold.append(named(type(value)))
        return named(type(value))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of those within it."""
    yield code
    for entry in code.co_consts:
        if isinstance(entry, CodeType):
            yield from _codes(entry)


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not set yet
        return None


def _is_newobj(make: Any) -> bool:
    """Tell whether an object is made anew by its class alone: by the functions of ``copyreg`` with these names."""
    return getattr(make, "__name__", "") in {"__newobj__", "__newobj_ex__"}


def _short(text: str) -> str:
    """Return a text, of a long one the beginning and a digest."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 10]}... {_hashed(text)}"


def _hashed(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]
