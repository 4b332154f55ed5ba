"""Where in a method's source a call stands: the expression, if it names what it calls."""

import ast
import builtins
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lit_gelu.errors import SwapError
from lit_gelu.surgery import source
from lit_gelu.surgery.source import Position

_UNKNOWN = object()


class ObstacleError(SwapError):
    """Why a call cannot be written anew."""


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
    checkpointed: bool  # whether ``torch.utils.checkpoint`` stands between the method and the call


@dataclass(frozen=True)
class CallPlace:
    """A call expression in a method, with lines counted from the method's first."""

    method: str
    begin: Position
    end: Position
    argument: tuple[Position, Position]  # where the tensor that goes in begins and ends
    text: str  # the expression, so that a change of the source is noticed


def call_place(origin: Origin, is_callee: Callable[[Any], bool], tensor_method: str = "") -> CallPlace:
    """Find the expression of a call that names what ``is_callee`` accepts, or a tensor's method; refuse any other."""
    code = origin.code
    method = _method_name(type(origin.owner), origin.method)
    if all(inner is not code for inner in source.codes_in(origin.method)):  # equal code may stand elsewhere too
        raise ObstacleError(f"{code.co_qualname} makes the call, which is not part of {origin.method.co_qualname}")
    if origin.end is None:
        raise ObstacleError("Python was told to leave out positions")
    node = source.call_at(code, origin.end)
    argument = _argument(node, origin, is_callee, tensor_method)
    if isinstance(source.parent_of(code, node), ast.Expr):
        raise ObstacleError(
            "its result is not used: it is called to overwrite its input. Write x = f(x) there, and it can be swapped"
        )
    first = origin.method.co_firstlineno
    _require_self(origin.method)

    def begin_and_end(part: ast.expr) -> tuple[Position, Position]:
        return (part.lineno - first, part.col_offset), ((part.end_lineno or 0) - first, part.end_col_offset or 0)

    return CallPlace(method, *begin_and_end(node), begin_and_end(argument), ast.unparse(node))


def _method_name(cls: type, code: types.CodeType) -> str:
    """Return the name under which a class has a function with a given code; what decorators wrap is looked into."""
    for owner in cls.__mro__:
        for name, value in vars(owner).items():
            if inspect.isfunction(value) and any(f.__code__ is code for f in wrapped_functions(value)):
                if inspect.getattr_static(cls, name) is value:
                    return name
                raise ObstacleError(f"{code.co_qualname} is reached through super() from {cls.__qualname__}")
    raise ObstacleError(f"{code.co_qualname} is no method of {cls.__qualname__}")


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
        return _first_argument(node)
    if tensor_method and isinstance(callee, ast.Attribute) and callee.attr == tensor_method:
        base = _resolve(callee.value, origin)
        if base is _UNKNOWN or isinstance(base, Tensor):
            return callee.value
    raise ObstacleError(f"{ast.unparse(node)!r} does not name it: what it calls may differ from call to call")


def holder_of(place: CallPlace, origin: Origin) -> tuple[nn.Module, str] | None:
    """Return the module and the attribute through which a place calls; ``None`` if it calls something else."""
    callee = ast.parse(place.text, mode="eval").body
    if not (isinstance(callee, ast.Call) and isinstance(callee.func, ast.Attribute)):
        return None
    base = _resolve(callee.func.value, origin)
    return (base, callee.func.attr) if isinstance(base, nn.Module) else None


def _first_argument(node: ast.Call) -> ast.expr:
    """Return the expression of an activation's input: the first argument, or the one called input, x or self."""
    if node.args and not isinstance(node.args[0], ast.Starred):
        return node.args[0]
    by_name = [keyword.value for keyword in node.keywords if keyword.arg in {"input", "x", "self"}]
    if by_name and not node.args:
        return by_name[0]
    raise ObstacleError(f"its input is not written out in {ast.unparse(node)!r}")


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


def _require_self(method: types.CodeType) -> None:
    """Refuse a method in which ``self`` may be something else than its module."""
    function = source.function_at(method)
    parameters = [*function.args.posonlyargs, *function.args.args]
    for node in ast.walk(function):
        stored = isinstance(node, ast.Name) and node.id == "self" and not isinstance(node.ctx, ast.Load)
        hidden = isinstance(node, ast.arg) and node.arg == "self" and node not in parameters
        if stored or hidden:
            raise ObstacleError(f"{method.co_qualname} gives the name self to something else")
