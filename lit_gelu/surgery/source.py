"""The source of running code: the calls that stand in it, the one of an instruction, and code with other calls."""

import ast
import functools
import hashlib
import inspect
import linecache
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from lit_gelu.errors import SwapError
from lit_gelu.surgery.recognition import FunctionTable, KnownFunction

Position = tuple[int, int]
"""Line (from 1) and column in bytes (from 0) just behind a call expression; no two calls end at the same place."""

_REWRITTEN: dict[str, str] = {}  # by file name: linecache can be cleared by anybody


class SourceError(SwapError):
    """Code whose source is not there, or is not what runs."""


@dataclass(frozen=True)
class Replacement:
    """One call expression that is to call something else, with one of its arguments alone."""

    begin: Position
    end: Position
    argument: tuple[Position, Position]  # where it begins and ends
    callee: str


def call_at(code: types.CodeType, end: Position) -> ast.Call:
    """Return the call expression, in the file of some code, that ends at a position."""
    call = _calls(_tree(code)).get(end)
    if call is None:
        raise SourceError(f"no call expression ends at line {end[0]} of {code.co_filename}")
    return call


def function_at(code: types.CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda:
    """Return the node of the function whose code it is."""
    for node in ast.walk(_tree(code)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    raise SourceError(f"{code.co_qualname} is no function definition in {code.co_filename}")


def with_calls_replaced(code: types.CodeType, replacements: Sequence[Replacement]) -> types.CodeType:
    """Compile a function's source again with some of its calls replaced, and return its code."""
    # The whole file is compiled, so that scopes, name mangling, super() and line numbers stay as they are; only the
    # code of the one function is taken, and no module is executed. The new text is what tracebacks, inspect and
    # debuggers show.
    text = _source(code)
    new = _edited(text, replacements)
    digest = hashlib.sha256(new.encode()).hexdigest()[:12]
    filename = f"<lit_gelu {_original(code)} rewritten {digest}>"
    _REWRITTEN[filename] = new
    linecache.cache[filename] = (len(new), None, new.splitlines(keepends=True), filename)
    codes = _codes_by_place(filename, new).get(_place(code), [])
    if len(codes) != 1 or not set(codes[0].co_freevars) <= set(code.co_freevars):
        raise SourceError(f"{code.co_qualname} cannot be told from other functions of {code.co_filename}")
    return codes[0]


def file_name(code: types.CodeType) -> str:
    """Return the file that code comes from, without its folder; of rewritten code, that of the original."""
    return _original(code).replace("\\", "/").rpartition("/")[2]


def _original(code: types.CodeType) -> str:
    return code.co_filename.removeprefix("<lit_gelu ").partition(" rewritten ")[0]


def parent_of(code: types.CodeType, node: ast.AST) -> ast.AST | None:
    """Return the node that holds another one of the file of some code; ``None`` for the file itself."""
    return next((parent for parent in ast.walk(_tree(code)) if node in ast.iter_child_nodes(parent)), None)


def codes_in(code: types.CodeType) -> list[types.CodeType]:
    """Return code and all that is nested in it, the outer one first."""
    codes = [code]
    for outer in codes:  # which grows meanwhile
        codes += [constant for constant in outer.co_consts if isinstance(constant, types.CodeType)]
    return codes


def _place(code: types.CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _source(code: types.CodeType) -> str:
    """Return the text of the file that code comes from, or raise `SourceError` if that is not what runs."""
    filename = code.co_filename
    linecache.checkcache(filename)
    text = _REWRITTEN.get(filename) or "".join(linecache.getlines(filename))
    if not text:
        raise SourceError(f"the source of {code.co_qualname} is not to be had")
    if code not in _codes_by_place(filename, text).get(_place(code), []):
        raise SourceError(
            f"the source of {code.co_qualname} in {filename} is not what runs: the file was changed after it was "
            "imported, or something rewrote the code"
        )
    return text


def _tree(code: types.CodeType) -> ast.Module:
    """Return the syntax tree of the file that code comes from."""
    return _parsed(_source(code))


@functools.lru_cache(maxsize=128)
def _codes_by_place(filename: str, text: str) -> dict[tuple[str, int], list[types.CodeType]]:
    """Compile a file, and return all code in it by name and first line; `SourceError` if it is no Python."""
    try:
        compiled = compile(text, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise SourceError(f"the source in {filename} is no Python: {error}") from error
    codes: dict[tuple[str, int], list[types.CodeType]] = {}
    for code in codes_in(compiled):
        codes.setdefault(_place(code), []).append(code)
    return codes


@functools.lru_cache(maxsize=128)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@functools.lru_cache(maxsize=128)
def _calls(tree: ast.Module) -> dict[Position, ast.Call]:
    """Return every call expression of a file by its end."""
    return {
        (node.end_lineno or 0, node.end_col_offset or 0): node for node in ast.walk(tree) if isinstance(node, ast.Call)
    }


def _edited(text: str, replacements: Sequence[Replacement]) -> str:
    """Replace ``callee(argument, ...)`` by ``other(argument)``; lines keep their numbers, arguments may be nested."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    content = b"".join(lines)

    def offset(position: Position) -> int:
        return starts[position[0] - 1] + position[1]

    cuts: list[tuple[int, int, bytes]] = []
    for r in replacements:
        (first, last), (begin, end) = map(offset, r.argument), (offset(r.begin), offset(r.end))
        cuts.append((begin, first, f"{r.callee}(".encode()))
        cuts.append((last, end, b""))
    for begin, end, new in sorted(cuts, key=lambda cut: (cut[0], cut[1]), reverse=True):
        newlines = b"\n" * content.count(b"\n", begin, end)
        content = content[:begin] + new + newlines + (b"" if new else b")") + content[end:]
    return content.decode()


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
    calls = []
    for method in _methods(kind):
        for call in _calls_in(method):
            function = _activation_function(call, method, table)
            if function is not None and not function.gate:
                where = f"{file_name(method.__code__)}:{call.lineno}"
                calls.append(WrittenCall("", function.name, where))
    return calls


_READ_ALL = frozenset({
    "_modules",
    "apply",
    "children",
    "getattr",
    "get_submodule",
    "modules",
    "named_children",
    "vars",
})


def is_never_read(model: nn.Module, site: str) -> bool:
    """Return whether the constructor of a module's owner names it, and no other method of the model's classes does."""
    # Mamba's mixer has its SiLU in ``self.act``, and calls a function that looks the activation up by its name.
    owner, _, name = site.rpartition(".")
    names = [_names_in(kind) for kind in type(model.get_submodule(owner)).__mro__]
    others = {kind for module in model.modules() for kind in type(module).__mro__}
    in_constructor = any(name in constructor for constructor, _ in names)
    return (
        in_constructor
        and not any(used & _READ_ALL for _, used in names)
        and not any(name in _names_in(kind)[1] for kind in others)
    )


@functools.lru_cache(maxsize=1024)
def _names_in(kind: type) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names in the constructor of a class that is not torch's, and in its other methods."""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for key, value in vars(kind).items() if kind.__module__.partition(".")[0] not in {"builtins", "torch"} else ():
        method = inspect.unwrap(value) if callable(value) else None
        for code in codes_in(method.__code__) if isinstance(method, types.FunctionType) else ():
            names[key == "__init__"].update(code.co_names)
    return frozenset(names[True]), frozenset(names[False])


def _methods(kind: type[nn.Module]) -> Iterator[types.FunctionType]:
    """Yield ``forward``, and the methods that it or they call."""
    names = ["forward"]
    for name in names:  # which grows meanwhile
        attribute = getattr(kind, name, None)
        method = inspect.unwrap(attribute) if callable(attribute) else None  # transformers decorates its methods
        if isinstance(method, types.FunctionType):
            yield method
            called = [node.func for node in _calls_in(method) if isinstance(node.func, ast.Attribute)]
            itself = method.__code__.co_varnames[:1]
            methods = [node.attr for node in called if isinstance(node.value, ast.Name) and (node.value.id,) == itself]
            names += [each for each in dict.fromkeys(methods) if each not in names]


def _calls_in(method: types.FunctionType) -> list[ast.Call]:
    """Return the call expressions of a method; none where its source is not to be had."""
    try:
        function = function_at(method.__code__)
    except SourceError:
        return []
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def _activation_function(call: ast.Call, method: types.FunctionType, table: FunctionTable) -> KnownFunction | None:
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
