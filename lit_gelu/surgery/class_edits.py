"""A module's class with some calls in its methods replaced by calls of child modules of its own.

The class is exchanged for a subclass whose methods are compiled again from their source, with the one expression
changed: ``F.gelu(x)`` becomes ``self.gelu_call(x)``. Nothing is intercepted, so ``state_dict``, ``torch.compile`` and
exporters see an ordinary child. A ``forward`` in the instance's dictionary would be dropped by pickle without a word.
"""

import ast
import functools
import inspect
import itertools
import pickle
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from lit_gelu.errors import SwapError
from lit_gelu.surgery import source
from lit_gelu.surgery.source import CallPlace, wrapped_functions

EDITS = "_lit_gelu_edits"  # the attribute of such a class


@dataclass(frozen=True)
class Edit:
    """A call expression that calls a child instead; a probed one stays, and its input goes through the child first."""

    place: CallPlace
    child: str
    name: str | None  # of the site that the call was, relative to the module; ``None`` of a probed one


_FRESH: weakref.WeakValueDictionary[Any, type[nn.Module]] = weakref.WeakValueDictionary()  # by class and edits


def edited_class(cls: type[nn.Module], edits: tuple[Edit, ...]) -> type[nn.Module]:
    """Return the subclass, of the same name, in which calls go to children; the same one for the same edits."""
    if cls.__module__ == parametrize.__name__:
        raise SwapError(
            f"{cls.__name__} is the class that torch.nn.utils.parametrize made for it, to which it goes back when the "
            "parametrization is removed. Swap first, then parametrize"
        )
    if (cached := _FRESH.get((cls, edits))) is not None:
        return cached
    namespace: dict[str, Any] = {
        name: _rewritten(cls, name, [edit for edit in edits if edit.place.method == name])
        for name in dict.fromkeys(edit.place.method for edit in edits)
    }
    namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    namespace |= {EDITS: edits, "__reduce_ex__": _reduce}
    edited: type[nn.Module] = types.new_class(cls.__name__, (cls,), exec_body=lambda body: body.update(namespace))
    _FRESH[cls, edits] = edited
    return edited


def _rewritten(cls: type, name: str, edits: Sequence[Edit]) -> Callable[..., Any]:
    """Compile a method again, with its calls replaced, or raise `SwapError` if it has been changed."""
    if not (chain := list(wrapped_functions(inspect.getattr_static(cls, name)))):
        raise SwapError(f"{cls.__qualname__}.{name} is no function")
    code = chain[-1].__code__
    first = code.co_firstlineno
    replacements = []
    for edit in sorted(edits, key=lambda edit: edit.place.argument[1]):  # of nested ones the inner first
        place = edit.place
        node = source.call_at(code, (place.end[0] + first, place.end[1]))
        if ast.unparse(node) != place.text:
            raise SwapError(f"{cls.__qualname__}.{name} has been changed: {place.text!r} is not where it was")
        begin, stop = ((line + first, column) for line, column in place.argument)
        span = (begin, stop) if edit.name is None else source.span_of(node)
        replacements.append((span, (begin, stop), f"self.{edit.child}"))
    changed = source.with_calls_replaced(code, replacements)
    cells = dict(zip(code.co_freevars, chain[-1].__closure__ or (), strict=True))
    new = _like(chain[-1], changed, tuple(cells[variable] for variable in changed.co_freevars))
    for wrapper, inner in reversed(list(itertools.pairwise(chain))):
        holds = [cell.cell_contents is inner for cell in wrapper.__closure__ or ()]
        if not any(holds):
            raise SwapError(f"{inner.__qualname__} is decorated in a way that cannot be taken apart")
        closure = zip(wrapper.__closure__ or (), holds, strict=True)
        cells_of_wrapper = tuple(types.CellType(new) if hold else cell for cell, hold in closure)
        wrapping = _like(wrapper, wrapper.__code__, cells_of_wrapper)
        wrapping.__dict__["__wrapped__"] = new
        new = wrapping
    return new


def _like(function: types.FunctionType, code: types.CodeType, cells: tuple[types.CellType, ...]) -> types.FunctionType:
    """Return a function with other code and variables that it closes over, and everything else as it was."""
    new = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells or None)
    new.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(new, function)
    del new.__dict__["__wrapped__"]
    return new


def _reduce(self: nn.Module, protocol: Any) -> Any:
    """Pickle and copy a module by its class as it was written and the edits, which are made again."""
    layers = [cls for cls in type(self).__mro__ if EDITS in cls.__dict__]
    original = layers[-1].__mro__[1]
    reduce: Any = original.__reduce_ex__
    reduced = reduce(self, protocol)
    if not isinstance(reduced, tuple) or getattr(reduced[0], "__name__", "") != "__newobj__":
        raise pickle.PicklingError(
            f"{original.__qualname__} has its own way to be pickled, and calls in it were swapped. Save its "
            "state_dict, or undo the swap first."
        )
    edits = tuple(layer.__dict__[EDITS] for layer in reversed(layers))
    return (_build, (original, edits, *reduced[1][1:]), *reduced[2:])


def _build(original: type[nn.Module], layers: tuple[tuple[Edit, ...], ...], *args: Any) -> nn.Module:
    """Make an empty module of an edited class: what pickle and copy call."""
    edited: type[nn.Module] = functools.reduce(edited_class, layers, original)
    return edited.__new__(edited, *args)
