"""Where in a model's code a call stands: the frame that makes it, the module whose method that is, the expression."""

import ast
import builtins
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lit_gelu.surgery import source
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.source import Position

_PASSED_OVER = frozenset({
    "torch._compile",
    "torch._dynamo.eval_frame",
    "torch._jit_internal",
    "torch.nn.functional",
    "torch.nn.modules.module",
    "torch.overrides",
})
_UNKNOWN = object()


class ObstacleError(SwapError):
    """Why a call cannot be written anew."""


@dataclass(frozen=True)
class Location:
    """Where a call comes from.

    Args:
        frame: The frame that makes it.
        owner: The innermost module whose method is running.
        method: The code of that method.
        chain: All modules of the model whose methods are running, the innermost first.
        checkpointed: Whether ``torch.utils.checkpoint`` stands between the method and the call.
    """

    frame: types.FrameType
    owner: nn.Module
    method: types.CodeType
    chain: tuple[nn.Module, ...]
    checkpointed: bool = False

    @property
    def where(self) -> str:
        """File and line."""
        filename = self.frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
        return f"{filename}:{self.frame.f_lineno}"


@dataclass(frozen=True)
class CallPlace:
    """A call expression in a method, with lines counted from the method's first.

    Args:
        method: The method's name.
        receiver: What it calls its module; mostly ``self``.
        begin: Where the expression begins.
        end: Where it ends.
        argument: Where the tensor that goes in begins and ends.
        text: The expression, so that a change of the source is noticed.
        arguments: How many arguments it has, the input among them.
    """

    method: str
    receiver: str
    begin: Position
    end: Position
    argument: tuple[Position, Position]
    text: str
    arguments: int = 1


def locate(frame: types.FrameType, modules: Mapping[int, Any]) -> Location | None:
    """Find out which module of a model makes a call.

    Args:
        frame: Where to begin; frames of torch's own wrappers are passed over.
        modules: The model's modules, by ``id``.

    Returns:
        The location, ``None`` if no method of one of the modules is running.
    """
    caller: types.FrameType | None = frame
    while caller is not None and caller.f_globals.get("__name__") in _PASSED_OVER:
        caller = caller.f_back
    if caller is None:
        return None
    owners = [(module, code) for module, code in _owners(caller) if id(module) in modules]
    if not owners:
        return None
    chain = {id(module): module for module, _ in owners}
    return Location(caller, *owners[0], tuple(chain.values()), _is_checkpointed(caller, owners[0][1]))


def _is_checkpointed(frame: types.FrameType | None, method: types.CodeType) -> bool:
    """Say whether a method has a call recomputed in the backward pass, when the method itself runs no more."""
    while frame is not None and frame.f_code is not method:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False


def _owners(frame: types.FrameType | None) -> Iterator[tuple[nn.Module, types.CodeType]]:
    """Yield the first arguments of the running functions that are modules, the innermost first."""
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module):
                yield first, code
        frame = frame.f_back


def call_place(location: Location, is_callee: Callable[[Any], bool], tensor_method: str = "") -> CallPlace:
    """Find the expression of a call that is running now.

    Args:
        location: Where it comes from.
        is_callee: Says whether an object is what is called.
        tensor_method: The name of the tensor's method that is called, if it is one.

    Returns:
        The place.

    Raises:
        ObstacleError: If the call is not written out there, as one expression that names what it calls.
        SourceError: If the source is not to be had.
    """
    frame, code = location.frame, location.frame.f_code
    method = method_name(type(location.owner), location.method)
    if not source.contains(location.method, code):
        raise ObstacleError(f"{code.co_qualname} makes the call, which is not part of {location.method.co_qualname}")
    end = source.end_of(code, frame.f_lasti)
    if end is None:
        raise ObstacleError("Python was told to leave out positions")
    node = source.call_at(code, end)
    receiver = location.method.co_varnames[0]
    argument = _argument(node, location, is_callee, tensor_method)
    _require_same_receiver(location.method, receiver)
    if isinstance(source.parent_of(code, node), ast.Expr):
        raise ObstacleError(
            "its result is not used: it is called to overwrite its input. Write x = f(x) there, and it can be swapped"
        )
    first = location.method.co_firstlineno
    return CallPlace(
        method,
        receiver,
        _relative(node.lineno, node.col_offset, first),
        _relative(*end, first),
        (
            _relative(argument.lineno, argument.col_offset, first),
            _relative(argument.end_lineno or 0, argument.end_col_offset or 0, first),
        ),
        ast.unparse(node),
        len(node.args) + len(node.keywords),
    )


def method_name(cls: type, code: types.CodeType) -> str:
    """Return the name under which a class has a function with a given code.

    Args:
        cls: The class.
        code: The code; decorated functions are looked into.

    Returns:
        The name.

    Raises:
        ObstacleError: If there is none, or a subclass has another function of that name, which calls this one.
    """
    for owner in cls.__mro__:
        for name, value in vars(owner).items():
            if inspect.isfunction(value) and any(f.__code__ is code for f in wrapped_functions(value)):
                if inspect.getattr_static(cls, name) is value:
                    return name
                raise ObstacleError(f"{code.co_qualname} is reached through super() from {cls.__qualname__}")
    raise ObstacleError(f"{code.co_qualname} is no method of {cls.__qualname__}")


def wrapped_functions(function: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """Yield a function and those that its decorators wrap.

    Args:
        function: A function.

    Yields:
        Functions, the outermost first.
    """
    current: Any = function
    while inspect.isfunction(current):
        yield current
        current = getattr(current, "__wrapped__", None)


def _relative(line: int, column: int, first: int) -> Position:
    return line - first, column


def _argument(node: ast.Call, location: Location, is_callee: Callable[[Any], bool], tensor_method: str) -> ast.expr:
    """Return the expression of the tensor that goes in.

    Raises:
        ObstacleError: If the expression calls something else, which in turn calls this.
    """
    callee = node.func
    if is_callee(_resolve(callee, location)):
        if node.args and not isinstance(node.args[0], ast.Starred):
            return node.args[0]
        by_name = [keyword.value for keyword in node.keywords if keyword.arg in {"input", "x", "self"}]
        if by_name and not node.args:
            return by_name[0]
        raise ObstacleError(f"its input is not written out in {ast.unparse(node)!r}")
    if tensor_method and isinstance(callee, ast.Attribute) and callee.attr == tensor_method:
        base = _resolve(callee.value, location)
        if base is _UNKNOWN or isinstance(base, Tensor):
            return callee.value
    raise ObstacleError(f"{ast.unparse(node)!r} does not name it: what it calls may differ from call to call")


def _resolve(node: ast.expr, location: Location) -> Any:
    """Return the object that an expression made of names, attributes and constant indices stands for.

    Variables of the method do not count, except the module itself: they may stand for something else the next time.
    """
    frame, receiver = location.frame, location.method.co_varnames[0]
    match node:
        case ast.Name(name):
            own = {*location.method.co_varnames, *location.method.co_cellvars, *frame.f_code.co_varnames}
            if name in own and name != receiver:
                found = frame.f_locals.get(name, _UNKNOWN)
                return found if isinstance(found, Tensor) else _UNKNOWN
            for scope in (frame.f_locals, frame.f_globals, vars(builtins)):
                if name in scope:
                    return scope[name]
        case ast.Attribute(value, attribute):
            base = _resolve(value, location)
            if base is not _UNKNOWN and not isinstance(base, Tensor):
                return getattr(base, attribute, _UNKNOWN)
        case ast.Subscript(value, ast.Constant(key)):
            base = _resolve(value, location)
            if isinstance(base, (dict, list, tuple, nn.ModuleList, nn.ModuleDict, nn.Sequential)):
                held: Any = base
                try:
                    return held[key]
                except (LookupError, TypeError):
                    return _UNKNOWN
    return _UNKNOWN


def _require_same_receiver(method: types.CodeType, receiver: str) -> None:
    """Refuse a method that gives the name of its module to something else.

    Raises:
        ObstacleError: If it does.
        SourceError: If the source is not to be had.
    """
    function = source.function_at(method)
    for node in ast.walk(function):
        stored = isinstance(node, ast.Name) and node.id == receiver and not isinstance(node.ctx, ast.Load)
        hidden = isinstance(node, ast.arg) and node.arg == receiver and node not in _parameters(function)
        if stored or hidden:
            raise ObstacleError(f"{method.co_qualname} gives the name {receiver!r} to something else")


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args]
