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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from lit_gelu.surgery import source
from lit_gelu.surgery.changes import (
    EDITS,
    Edit,
    InterceptedCall,
    KeptChild,
    ProbedCall,
    RewrittenCall,
)
from lit_gelu.surgery.places import ObstacleError, wrapped_functions
from lit_gelu.surgery.source import Replacement

_FRESH: weakref.WeakValueDictionary[Any, type[nn.Module]] = weakref.WeakValueDictionary()  # by class and edits


def edited_class(cls: type[nn.Module], edits: tuple[Edit, ...]) -> type[nn.Module]:
    """Return the subclass, of the same name, in which calls go to children; the same one for the same edits."""
    if cls.__module__ == parametrize.__name__:
        raise ObstacleError(
            f"{cls.__name__} is the class that torch.nn.utils.parametrize made for it, to which it goes back when the "
            "parametrization is removed. Swap first, then parametrize"
        )
    cached = _FRESH.get((cls, edits))
    if cached is not None:
        return cached
    rewritten = [edit for edit in edits if isinstance(edit, RewrittenCall | ProbedCall)]
    intercepted = [edit for edit in edits if isinstance(edit, InterceptedCall)]
    namespace: dict[str, Any] = {
        name: _rewritten(cls, name, [edit for edit in rewritten if edit.place.method == name])
        for name in dict.fromkeys(edit.place.method for edit in rewritten)
    }
    if intercepted:
        namespace["forward"] = _intercepting(namespace.get("forward", cls.forward), intercepted)
    kept = tuple(edit.child for edit in edits if isinstance(edit, KeptChild))
    if kept:
        namespace["__setstate__"] = _keeping(cls, kept)
    namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    namespace |= {EDITS: edits, "__reduce_ex__": _reduce}
    try:
        edited = cast(
            "type[nn.Module]", types.new_class(cls.__name__, (cls,), exec_body=lambda body: body.update(namespace))
        )
    except Exception as error:
        raise ObstacleError(f"{cls.__qualname__} cannot be derived from: {error}") from error
    _FRESH[cls, edits] = edited
    return edited


def _rewritten(cls: type, name: str, edits: Sequence[RewrittenCall | ProbedCall]) -> Callable[..., Any]:
    """Compile a method again, with its calls replaced, or raise `ObstacleError` if it has been changed."""
    outermost = inspect.getattr_static(cls, name)
    chain = list(wrapped_functions(outermost))
    if not chain:
        raise ObstacleError(f"{cls.__qualname__}.{name} is no function")
    code = chain[-1].__code__
    first = code.co_firstlineno
    replacements = []
    for edit in sorted(edits, key=lambda edit: edit.place.argument[1]):  # of nested ones the inner first
        place = edit.place
        end = (place.end[0] + first, place.end[1])
        node = source.call_at(code, end)
        if ast.unparse(node) != place.text:
            raise ObstacleError(f"{cls.__qualname__}.{name} has been changed: {place.text!r} is not where it was")
        begin, stop = ((line + first, column) for line, column in place.argument)
        outer = (begin, stop) if isinstance(edit, ProbedCall) else ((place.begin[0] + first, place.begin[1]), end)
        replacements.append(Replacement(*outer, (begin, stop), f"self.{edit.child}"))
    new: Callable[..., Any] = _with_code(chain[-1], source.with_calls_replaced(code, replacements))
    for wrapper, inner in reversed(list(itertools.pairwise(chain))):
        new = _with_inner(wrapper, inner, new)
    return new


def _with_code(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    """Return a function with other code and everything else as it was, the variables that it closes over included."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return _like(function, code, tuple(cells[name] for name in code.co_freevars))


def _with_inner(wrapper: types.FunctionType, inner: types.FunctionType, new: Callable[..., Any]) -> types.FunctionType:
    """Return a decorator's function that wraps another function instead, or raise `ObstacleError`."""
    cells = wrapper.__closure__ or ()
    holds = [_content(cell) is inner for cell in cells]
    if not any(holds):
        raise ObstacleError(f"{inner.__qualname__} is decorated in a way that cannot be taken apart")
    changed = tuple(types.CellType(new) if hold else cell for cell, hold in zip(cells, holds, strict=True))
    outer = _like(wrapper, wrapper.__code__, changed)
    outer.__dict__["__wrapped__"] = new
    return outer


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _like(function: types.FunctionType, code: types.CodeType, cells: tuple[types.CellType, ...]) -> types.FunctionType:
    new = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells or None)
    new.__kwdefaults__ = function.__kwdefaults__
    new.__annotations__ = dict(function.__annotations__)
    new.__doc__, new.__qualname__, new.__module__ = function.__doc__, function.__qualname__, function.__module__
    new.__dict__.update(function.__dict__)
    return new


class _Interceptor(TorchFunctionMode):
    """Sends calls of given functions to modules."""

    def __init__(self, modules: Mapping[Any, nn.Module]) -> None:
        super().__init__()
        self._modules = modules

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        module = self._modules.get(func)
        if module is None or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        return module(args[0] if args else kwargs["input"])


def _intercepting(forward: Callable[..., Any], edits: list[InterceptedCall]) -> Callable[..., Any]:
    """Return a ``forward`` during which functions are intercepted."""

    @functools.wraps(forward)
    def intercepted(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        modules = {function: getattr(self, edit.child) for edit in edits for function in edit.paths}
        with _Interceptor(modules):
            return forward(self, *args, **kwargs)

    return intercepted


def _keeping(cls: type[nn.Module], children: tuple[str, ...]) -> Callable[[nn.Module, dict[str, Any]], None]:
    """Return a ``__setstate__`` after which children are not hidden."""

    def __setstate__(self: nn.Module, state: dict[str, Any]) -> None:  # noqa: N807 - it becomes one
        untyped: Any = cls
        untyped.__setstate__(self, dict(state))  # copy.copy gives the original's own dictionary, which it writes to
        for child in children:
            vars(self).pop(child, None)

    return __setstate__


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
