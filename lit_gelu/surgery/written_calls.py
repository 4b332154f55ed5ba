"""Calls of activations that stand in the code of a model's ``forward``: what may run there, as far as reading tells."""

import ast
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from lit_gelu.surgery.recognition import FunctionTable, KnownFunction
from lit_gelu.surgery.source import SourceError, file_name, function_at


@dataclass(frozen=True)
class WrittenCall:
    """A call of an activation function that somebody wrote; whether it runs, only a sample shows."""

    module: str  # fully qualified name of the module whose code it is in
    activation: str  # canonical name of the activation
    where: str  # file, without its folder, and line

    @property
    def name(self) -> str:
        """The site's name with a sample, where the module has no other call of this activation."""
        return f"{self.module}:{self.activation}"

    def of(self, module: str) -> "WrittenCall":
        """Return the same call as that of a module of this name."""
        return replace(self, module=module)

    def __str__(self) -> str:
        return f"{self.name!r} ({self.where})"


def written_calls(kind: type[nn.Module], table: FunctionTable) -> list[WrittenCall]:
    """Return the calls of activations, gates left out, in the ``forward`` of a class and in methods that this calls."""
    # torch's own modules hold their activations, and `find_sites` lists those.
    if kind.__module__.partition(".")[0] == "torch":
        return []
    found = []
    for method in _methods(kind):
        for call in _calls_in(method):
            known = _known(call, method, table)
            if known is not None and not known.gate:
                where = f"{file_name(method.__code__)}:{call.lineno}"
                found.append(WrittenCall("", known.name, where))
    return found


def _methods(kind: type[nn.Module]) -> Iterator[types.FunctionType]:
    """Yield ``forward``, and the methods that it or they call."""
    names = ["forward"]
    for name in names:  # which grows meanwhile
        found = getattr(kind, name, None)
        method = inspect.unwrap(found) if callable(found) else None  # transformers decorates its methods
        if isinstance(method, types.FunctionType):
            yield method
            called = [node.func for node in _calls_in(method) if isinstance(node.func, ast.Attribute)]
            own = [node.attr for node in called if isinstance(node.value, ast.Name) and node.value.id == _self(method)]
            names += [each for each in dict.fromkeys(own) if each not in names]


def _calls_in(method: types.FunctionType) -> list[ast.Call]:
    """Return the call expressions of a method; none where its source is not to be had."""
    try:
        function = function_at(method.__code__)
    except SourceError:
        return []
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def _self(method: types.FunctionType) -> str:
    """Return what a method calls its own module."""
    return next(iter(method.__code__.co_varnames), "")


def _known(call: ast.Call, method: types.FunctionType, table: FunctionTable) -> KnownFunction | None:
    """Return the activation function that is called, if its name leads to one."""
    function = _named(call.func, method)
    if function is not None:
        return table.find(function)
    if isinstance(call.func, ast.Attribute) and not call.args:  # h.relu(), and not self.relu(h)
        return table.find(getattr(Tensor, call.func.attr, None))
    return None


def _named(expression: ast.expr, method: types.FunctionType) -> Any:
    """Return what a dotted name leads to through modules of Python; ``None`` for anything else."""
    if isinstance(expression, ast.Name):
        return None if expression.id in method.__code__.co_varnames else method.__globals__.get(expression.id)
    if isinstance(expression, ast.Attribute):
        holder = _named(expression.value, method)
        return getattr(holder, expression.attr, None) if isinstance(holder, types.ModuleType) else None
    return None
