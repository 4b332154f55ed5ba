"""The source of running code: where in it a call stands that names what it calls, and code with other calls."""

import ast
import builtins
import functools
import hashlib
import inspect
import linecache
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lit_gelu.errors import SwapError

Position = tuple[int, int]
"""Line (from 1) and column in bytes (from 0)."""

Span = tuple[Position, Position]
"""Where an expression begins, and the position just behind it; no two calls end at the same place."""

_UNKNOWN = object()
_REWRITTEN: dict[str, str] = {}  # by file name: linecache can be cleared by anybody


def span_of(node: ast.expr, first_line: int = 0) -> Span:
    """Return where an expression stands, with lines counted from a first one."""
    begin = node.lineno - first_line, node.col_offset
    return begin, ((node.end_lineno or 0) - first_line, node.end_col_offset or 0)


def call_at(code: types.CodeType, end: Position) -> ast.Call:
    """Return the call expression, in the file of some code, that ends at a position."""
    if (call := _calls(_tree(_source(code))).get(end)) is None:
        raise SwapError(f"no call expression ends at line {end[0]} of {code.co_filename}")
    return call


def with_calls_replaced(code: types.CodeType, replacements: Sequence[tuple[Span, Span, str]]) -> types.CodeType:
    """Compile a function's source again with expressions replaced by calls of something with an argument in them."""
    # The whole file is compiled, so that scopes, name mangling, super() and line numbers stay as they are; only the
    # code of the one function is taken, and no module is executed. The new text is what tracebacks, inspect and
    # debuggers show.
    new = _edited(_source(code), replacements)
    digest = hashlib.sha256(new.encode()).hexdigest()[:12]
    filename = f"<lit_gelu {_original(code)} rewritten {digest}>"
    _REWRITTEN[filename] = new
    linecache.cache[filename] = (len(new), None, new.splitlines(keepends=True), filename)
    codes = _codes_by_place(filename, new).get(_place(code), [])
    if len(codes) != 1 or not set(codes[0].co_freevars) <= set(code.co_freevars):
        raise SwapError(f"{code.co_qualname} cannot be told from other functions of {code.co_filename}")
    return codes[0]


def _original(code: types.CodeType) -> str:
    return code.co_filename.removeprefix("<lit_gelu ").partition(" rewritten ")[0]


def codes_in(code: types.CodeType) -> list[types.CodeType]:
    """Return code and all that is nested in it, the outer one first."""
    codes = [code]
    for outer in codes:  # which grows meanwhile
        codes += [constant for constant in outer.co_consts if isinstance(constant, types.CodeType)]
    return codes


def _place(code: types.CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _source(code: types.CodeType) -> str:
    """Return the text of the file that code comes from, or raise `SwapError` if that is not what runs."""
    filename = code.co_filename
    linecache.checkcache(filename)
    if not (text := _REWRITTEN.get(filename) or "".join(linecache.getlines(filename))):
        raise SwapError(f"the source of {code.co_qualname} is not to be had")
    if code not in _codes_by_place(filename, text).get(_place(code), []):
        raise SwapError(
            f"the source of {code.co_qualname} in {filename} is not what runs: the file was changed after it was "
            "imported, or something rewrote the code"
        )
    return text


@functools.lru_cache(maxsize=128)
def _codes_by_place(filename: str, text: str) -> dict[tuple[str, int], list[types.CodeType]]:
    """Compile a file, and return all code in it by name and first line; `SwapError` if it is no Python."""
    try:
        compiled = compile(text, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise SwapError(f"the source in {filename} is no Python: {error}") from error
    codes: dict[tuple[str, int], list[types.CodeType]] = {}
    for code in codes_in(compiled):
        codes.setdefault(_place(code), []).append(code)
    return codes


@functools.lru_cache(maxsize=128)
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


@functools.lru_cache(maxsize=128)
def _calls(tree: ast.Module) -> dict[Position, ast.Call]:
    return {span_of(node)[1]: node for node in ast.walk(tree) if isinstance(node, ast.Call)}


def _edited(text: str, replacements: Sequence[tuple[Span, Span, str]]) -> str:
    """Replace ``callee(argument, ...)`` by ``other(argument)``; lines keep their numbers, arguments may be nested."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    content = b"".join(lines)

    def offset(position: Position) -> int:
        return starts[position[0] - 1] + position[1]

    cuts: list[tuple[int, int, bytes]] = []
    for span, argument, callee in replacements:
        (begin, end), (first, last) = map(offset, span), map(offset, argument)
        cuts += [(begin, first, f"{callee}(".encode()), (last, end, b"")]
    for begin, end, new in sorted(cuts, key=lambda cut: (cut[0], cut[1]), reverse=True):
        newlines = b"\n" * content.count(b"\n", begin, end)
        content = content[:begin] + new + newlines + (b"" if new else b")") + content[end:]
    return content.decode()


@dataclass(frozen=True)
class Origin:
    """Where a call comes from; it holds no frame, and so none of the tensors that live in one."""

    owner: nn.Module  # the innermost module whose method is running
    method: types.CodeType
    code: types.CodeType  # the code that makes the call: the method's, or that of a function within it
    instruction: int  # byte offset of the call in the code
    end: Position | None  # where the expression ends; ``None`` if the code was stripped of positions
    # What the code sees under names that are no variables of its own, and under the module's.
    variables: Mapping[str, Any]
    variables_of_file: Mapping[str, Any]
    running: tuple[nn.Module, ...]  # all modules whose methods are running, the innermost first; of the model or not
    chain: tuple[nn.Module, ...]  # those of the model
    where: str  # file and line


@dataclass(frozen=True)
class CallPlace:
    """A call expression in a method, with lines counted from the method's first."""

    method: str
    end: Position
    argument: Span  # of the tensor that goes in
    text: str  # the expression, so that a change of the source is noticed


def call_place(origin: Origin, is_callee: Callable[[Any], bool], tensor_method: str = "") -> CallPlace:
    """Find the expression of a call that names what ``is_callee`` accepts, or a tensor's method; refuse any other."""
    code = origin.code
    method = _method_name(type(origin.owner), origin.method)
    if all(inner is not code for inner in codes_in(origin.method)):  # equal code may stand elsewhere too
        raise SwapError(f"{code.co_qualname} makes the call, which is not part of {origin.method.co_qualname}")
    if origin.end is None:
        raise SwapError("Python was told to leave out positions")
    node = call_at(code, origin.end)
    argument = _argument(node, origin, is_callee, tensor_method)
    if any(isinstance(statement, ast.Expr) and statement.value is node for statement in ast.walk(_tree(_source(code)))):
        raise SwapError(
            "its result is not used: it is called to overwrite its input. Write x = f(x) there, and it can be swapped"
        )
    first = origin.method.co_firstlineno
    return CallPlace(method, span_of(node, first)[1], span_of(argument, first), ast.unparse(node))


def _method_name(cls: type, code: types.CodeType) -> str:
    """Return the name under which a class has a function with a given code; what decorators wrap is looked into."""
    for owner in cls.__mro__:
        for name, value in vars(owner).items():
            if inspect.isfunction(value) and any(f.__code__ is code for f in wrapped_functions(value)):
                if inspect.getattr_static(cls, name) is value:
                    return name
                raise SwapError(f"{code.co_qualname} is reached through super() from {cls.__qualname__}")
    raise SwapError(f"{code.co_qualname} is no method of {cls.__qualname__}")


def wrapped_functions(function: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """Yield a function and those that its decorators wrap, the outermost first."""
    current: Any = function
    while inspect.isfunction(current):
        yield current
        current = getattr(current, "__wrapped__", None)


def _argument(node: ast.Call, origin: Origin, is_callee: Callable[[Any], bool], tensor_method: str) -> ast.expr:
    """Return the expression of the tensor that goes in; refuse a call of something else, which in turn calls this."""
    callee = node.func
    if is_callee(_resolve(callee, origin)):
        if node.args and not isinstance(node.args[0], ast.Starred):
            return node.args[0]
        by_name = [keyword.value for keyword in node.keywords if keyword.arg in {"input", "x", "self"}]
        if by_name and not node.args:
            return by_name[0]
        raise SwapError(f"its input is not written out in {ast.unparse(node)!r}")
    if tensor_method and isinstance(callee, ast.Attribute) and callee.attr == tensor_method:
        base = _resolve(callee.value, origin)
        if base is _UNKNOWN or isinstance(base, Tensor):
            return callee.value
    raise SwapError(f"{ast.unparse(node)!r} does not name it: what it calls may differ from call to call")


def holder_of(place: CallPlace, origin: Origin) -> tuple[nn.Module, str] | None:
    """Return the module and the attribute through which a place calls; ``None`` if it calls something else."""
    callee = ast.parse(place.text, mode="eval").body
    if not (isinstance(callee, ast.Call) and isinstance(callee.func, ast.Attribute)):
        return None
    base = _resolve(callee.func.value, origin)
    return (base, callee.func.attr) if isinstance(base, nn.Module) else None


def _resolve(node: ast.expr, origin: Origin) -> Any:
    """Return the object that an expression made of names, attributes and constant indices stands for."""
    # Variables of the method do not count, except the module itself: they may stand for something else the next time.
    match node:
        case ast.Name(name):
            variables = {*origin.method.co_varnames, *origin.method.co_cellvars, *origin.code.co_varnames}
            if name in variables and name != "self":
                return _UNKNOWN
            for scope in (origin.variables, origin.variables_of_file, vars(builtins)):
                if name in scope:
                    return scope[name]
        case ast.Attribute(value, attribute):
            base = _resolve(value, origin)
            if base is not _UNKNOWN and not isinstance(base, Tensor):
                return getattr(base, attribute, _UNKNOWN)
        case ast.Subscript(value, ast.Constant(key)):
            base = _resolve(value, origin)
            if isinstance(base, (dict, list, tuple, nn.ModuleList, nn.ModuleDict, nn.Sequential)):
                held: Any = base
                try:
                    return held[key]
                except (LookupError, TypeError):
                    return _UNKNOWN
    return _UNKNOWN


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

    def __str__(self) -> str:
        return f"{self.name!r} ({self.where})"


def written_calls(kind: type[nn.Module], name_of: Callable[[Any], str | None]) -> list[WrittenCall]:
    """Return the calls of what has an activation's name, in a class's ``forward`` and the methods that it calls."""
    # torch's own modules hold their activations, and `find_sites` lists those.
    if kind.__module__.partition(".")[0] == "torch":
        return []
    calls = []
    for method in _methods(kind):
        for call in _calls_in(method):
            called = _named(call.func, method)
            if called is None and isinstance(call.func, ast.Attribute) and not call.args:
                called = getattr(Tensor, call.func.attr, None)  # h.relu(), and not self.relu(h)
            activation = None if called is None else name_of(called)
            if activation is not None:
                file = _original(method.__code__).replace("\\", "/").rpartition("/")[2]
                calls.append(WrittenCall("", activation, f"{file}:{call.lineno}"))
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
    code = method.__code__
    try:
        nodes = [*ast.walk(_tree(_source(code)))]
    except SwapError:
        return []
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == code.co_name]
    lines = {min([node.lineno, *(each.lineno for each in node.decorator_list)]): node for node in functions}
    return [node for node in ast.walk(lines.get(code.co_firstlineno, ast.Pass())) if isinstance(node, ast.Call)]


def _named(expression: ast.expr, method: types.FunctionType) -> Any:
    """Return what a dotted name leads to through modules of Python; ``None`` for anything else."""
    if isinstance(expression, ast.Name):
        return None if expression.id in method.__code__.co_varnames else method.__globals__.get(expression.id)
    if isinstance(expression, ast.Attribute):
        holder = _named(expression.value, method)
        return getattr(holder, expression.attr, None) if isinstance(holder, types.ModuleType) else None
    return None
