"""The source of running code: the call expression that an instruction belongs to, and code with calls replaced."""

import ast
import functools
import hashlib
import linecache
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lit_gelu.surgery.errors import SwapError

Position = tuple[int, int]
"""Line (from 1) and column in bytes (from 0) just behind a call expression; no two calls end at the same place."""

_REWRITTEN: dict[str, str] = {}  # by file name: linecache can be cleared by anybody


class SourceError(SwapError):
    """Code whose source is not there, or is not what runs."""


@dataclass(frozen=True)
class Replacement:
    """One call expression that is to call something else.

    Args:
        end: Where it ends.
        argument: Where its only argument that is kept begins and ends.
        begin: Where it begins.
        callee: What to call instead.
    """

    end: Position
    argument: tuple[Position, Position]
    begin: Position
    callee: str


def end_of(code: types.CodeType, instruction: int) -> Position | None:
    """Return where the expression ends to which an instruction belongs.

    Args:
        code: The code.
        instruction: Byte offset of the instruction, as ``frame.f_lasti``.

    Returns:
        The position, ``None`` if the code was stripped of positions.
    """
    for index, (_, end_line, _, end_column) in enumerate(code.co_positions()):
        if index == instruction // 2:
            return None if end_line is None or end_column is None else (end_line, end_column)
    return None


def call_at(code: types.CodeType, end: Position) -> ast.Call:
    """Return the call expression that ends at a position.

    Args:
        code: Code that contains it.
        end: As `end_of`.

    Returns:
        The node of the file's syntax tree.

    Raises:
        SourceError: If there is none, or the source is not that of the code.

    Example:
        >>> def double(x):
        ...     return abs(
        ...         x
        ...     ) * 2
        >>> ast.unparse(call_at(double.__code__, (double.__code__.co_firstlineno + 3, 5)))
        'abs(x)'
    """
    found = _calls(_tree(code)).get(end)
    if found is None:
        raise SourceError(f"no call expression ends at line {end[0]} of {code.co_filename}")
    return found


def function_at(code: types.CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda:
    """Return the function whose code it is.

    Args:
        code: The code of a function.

    Returns:
        Its node.

    Raises:
        SourceError: If there is none, or the source is not that of the code.
    """
    for node in ast.walk(_tree(code)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    raise SourceError(f"{code.co_qualname} is no function definition in {code.co_filename}")


def with_calls_replaced(code: types.CodeType, replacements: Sequence[Replacement]) -> types.CodeType:
    """Compile a function's source again with some of its calls replaced.

    The whole file is compiled, so that scopes, name mangling, ``super()`` and line numbers stay as they are; only the
    code of the one function is taken, and no module is executed. The new text is what tracebacks, ``inspect`` and
    debuggers show.

    Args:
        code: The code of the function.
        replacements: What to replace.

    Returns:
        The new code.

    Raises:
        SourceError: If the source is not that of the code.
    """
    text = _source(code)
    new = _edited(text, replacements)
    digest = hashlib.sha256(new.encode()).hexdigest()[:12]
    original = code.co_filename.removeprefix("<lit_gelu ").partition(" rewritten ")[0]
    filename = f"<lit_gelu {original} rewritten {digest}>"
    _REWRITTEN[filename] = new
    linecache.cache[filename] = (len(new), None, new.splitlines(keepends=True), filename)
    found = [other for other in codes_in(_compiled(filename, new)) if _place(other) == _place(code)]
    if len(found) != 1 or not set(found[0].co_freevars) <= set(code.co_freevars):
        raise SourceError(f"{code.co_qualname} cannot be told from other functions of {code.co_filename}")
    return found[0]


def parent_of(code: types.CodeType, node: ast.AST) -> ast.AST | None:
    """Return the node that holds another one.

    Args:
        code: Any code of the file.
        node: A node of its syntax tree.

    Returns:
        The node, ``None`` for the file itself.

    Raises:
        SourceError: If the source is not that of the code.
    """
    return next((parent for parent in ast.walk(_tree(code)) if node in ast.iter_child_nodes(parent)), None)


def contains(code: types.CodeType, inner: types.CodeType) -> bool:
    """Say whether code is another code itself, or has it as a nested function, lambda or comprehension.

    Args:
        code: The outer one.
        inner: The inner one.

    Returns:
        Whether it is.
    """
    return any(found is inner for found in codes_in(code))


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code and all that is nested in it.

    Args:
        code: The outer one.

    Yields:
        The codes, the outer one first.
    """
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def _place(code: types.CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _source(code: types.CodeType) -> str:
    """Return the text of the file that code comes from, or raise `SourceError` if that is not what runs."""
    filename = code.co_filename
    linecache.checkcache(filename)
    text = _REWRITTEN.get(filename) or "".join(linecache.getlines(filename))
    if not text:
        raise SourceError(f"the source of {code.co_qualname} is not to be had")
    same = any(other == code for other in codes_in(_compiled(filename, text)) if _place(other) == _place(code))
    if not same:
        raise SourceError(
            f"the source of {code.co_qualname} in {filename} is not what runs: the file was changed after it was "
            "imported, or something rewrote the code"
        )
    return text


def _tree(code: types.CodeType) -> ast.Module:
    """Return the syntax tree of the file that code comes from."""
    return _parsed(_source(code))


@functools.lru_cache(maxsize=128)
def _compiled(filename: str, text: str) -> types.CodeType:
    """Compile a file, or raise `SourceError`."""
    try:
        return compile(text, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise SourceError(f"the source in {filename} is no Python: {error}") from error


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
