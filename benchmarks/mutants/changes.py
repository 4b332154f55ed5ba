"""Small faults of a Python file, one at a time: each is what a slip of the keyboard or of the mind might leave.

A fault changes one node of the syntax tree: a comparison, an operator of arithmetic or logic, a number, a truth value,
a condition; or it drops a returned value, a statement, a context. Types, imports, decorators and texts stay: a wrong
message is no wrong result.
"""

import ast
import copy
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

Path = tuple[tuple[str, int | None], ...]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_NOT_LOOKED_AT = {
    ast.Import: None,
    ast.ImportFrom: None,
    ast.JoinedStr: None,
    ast.arg: None,
    ast.AnnAssign: ("annotation",),
    ast.FunctionDef: ("returns", "decorator_list"),
    ast.ClassDef: ("decorator_list", "bases"),
}  # by class of node: fields, or None for the whole of it


@dataclass(frozen=True)
class Mutant:
    """A file with one fault.

    Args:
        where: The class or function that it is in, with dots.
        before: The lines that change, as `ast.unparse` writes them.
        after: What they become.
        source: The whole file with the fault.
    """

    where: str
    before: str
    after: str
    source: str


def normalised(source: str) -> str:
    """Return a file as `ast.unparse` writes it, without comments: what mutants are compared with.

    Args:
        source: Python code.

    Returns:
        The same code.
    """
    return ast.unparse(ast.parse(source))


def mutants_of(source: str) -> list[Mutant]:
    """Return every fault of a file that `changes` knows, in the order of the file; equal ones once.

    Args:
        source: Python code.

    Returns:
        The mutants.
    """
    tree, plain = ast.parse(source), normalised(source)
    found: dict[str, Mutant] = {}
    for path, where, node in _nodes(tree, (), ""):
        for changed in _changes(node):
            mutated = ast.unparse(ast.fix_missing_locations(_with(tree, path, changed)))
            if mutated != plain and mutated not in found:
                found[mutated] = Mutant(where, *_difference(plain, mutated), mutated)
    return list(found.values())


def _nodes(node: ast.AST, path: Path, where: str) -> Iterator[tuple[Path, str, ast.AST]]:
    """Yield all nodes that may be changed, with how to reach them."""
    skipped = _NOT_LOOKED_AT.get(type(node), ())
    if skipped is None:
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        where = f"{where}.{node.name}" if where else node.name
    yield path, where, node
    for field, value in ast.iter_fields(node):
        if field in skipped:
            continue
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if isinstance(child, ast.AST):
                yield from _nodes(child, (*path, (field, index)), where)


def _with(tree: ast.Module, path: Path, changed: ast.AST) -> ast.Module:
    """Return a copy of a tree with another node at a place."""
    tree = copy.deepcopy(tree)
    parent: ast.AST = tree
    for field, index in path[:-1]:
        value = getattr(parent, field)
        parent = value if index is None else value[index]
    field, index = path[-1]
    if index is None:
        setattr(parent, field, changed)
    else:
        getattr(parent, field)[index] = changed
    return tree


def _difference(before: str, after: str) -> tuple[str, str]:
    """Return the lines in which two texts differ."""
    lines = list(difflib.ndiff(before.split("\n"), after.split("\n")))
    return tuple(" / ".join(line[2:].strip() for line in lines if line[:2] == sign) for sign in ("- ", "+ "))


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in a node's place."""
    match node:
        case ast.Compare(ops=[op]):
            for other in _COMPARISONS.get(type(op), ()):
                yield _copied(node, ops=[other()])
        case ast.BoolOp(op=op):
            yield _copied(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
            yield _copied(node, op=_ARITHMETIC[type(op)]())
        case ast.Constant(value=bool() | int() | float() as value):
            yield from map(ast.Constant, _other_numbers(value))
        case ast.IfExp(test=test):
            yield _copied(node, test=ast.UnaryOp(ast.Not(), test))
    if isinstance(node, ast.stmt):
        yield from _changed_statements(node)


def _other_numbers(value: bool | float) -> tuple[bool | float, ...]:
    """Return what a number or a truth value may have been meant to be."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, float):
        return (1.1 * value if value else 1.0,)
    return (value + 1, value - 1) if value else (1,)


def _changed_statements(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield what may stand in a statement's place."""
    match node:
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, (ast.Compare, ast.UnaryOp)):
            yield _copied(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Constant()):
            return  # a docstring
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.With(items=items, body=body) if all(item.optional_vars is None for item in items):
            yield ast.If(ast.Constant(True), body, [])


def _copied(node: ast.AST, **changes: object) -> ast.AST:
    """Return a node with other fields."""
    return type(node)(**{**dict(ast.iter_fields(node)), **changes})
