"""Reads the recipes of the lowering table and builds them as ONNX nodes."""

import ast
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import onnx_ir as ir

from lit_gelu.export.lowering.table import CONSTANTS

CONTRIB_DOMAIN = "com.microsoft"

Argument = float | np.ndarray


def operators(recipe: str) -> list[str]:
    """Return the operators of a recipe in the order of the nodes, ``domain::Name`` for those that are not standard.

    Args:
        recipe: Text as in `lit_gelu.activations.onnx_recipes`.

    Returns:
        One name a node.

    Example:
        >>> operators("Mul(x, Sigmoid(Mul(x, 1.702)))")
        ['Mul', 'Sigmoid', 'Mul']
        >>> operators("microsoft.Gelu(x)")
        ['com.microsoft::Gelu']
    """
    found: list[str] = []

    def visit(node: ast.expr) -> None:
        if isinstance(node, ast.Call):
            for argument in node.args:
                visit(argument)
            domain, name = _operator(node.func)
            found.append(f"{domain}::{name}" if domain else name)

    for statement in _statements(recipe):
        visit(statement.value)
    return found


def names_in(recipe: str) -> set[str]:
    """Return the names of a recipe's arguments.

    Args:
        recipe: Text as in `lit_gelu.activations.onnx_recipes`.

    Returns:
        What it mentions beside ``x``, operators, names that it assigns and the table's constants.

    Example:
        >>> sorted(names_in("t = Mul(x, alpha); Where(Less(x, 0.0), t, Sub(t, SQRT_2))"))
        ['alpha']
    """
    statements = _statements(recipe)
    nodes = [node for statement in statements for node in ast.walk(statement.value)]
    functions = {id(part) for node in nodes if isinstance(node, ast.Call) for part in ast.walk(node.func)}
    assigned = {_target(statement) for statement in statements if isinstance(statement, ast.Assign)}
    names = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions}
    return names - assigned - CONSTANTS.keys() - {"x"}


class RecipeBuilder:
    """Builds the nodes of one recipe.

    Args:
        x: The activation's input.
        arguments: Values of the names that the recipe mentions beside ``x``.
        constant: Makes an initializer from an array and a hint for its name.
    """

    def __init__(
        self, x: ir.Value, arguments: Mapping[str, Argument], constant: Callable[[np.ndarray, str], ir.Value]
    ) -> None:
        self._names: dict[str, ir.Value] = {"x": x}
        self._arguments = {**CONSTANTS, **arguments}
        self._constant = constant
        self.nodes: list[ir.Node] = []

    def build(self, recipe: str) -> ir.Value:
        """Build the nodes, inner ones first, into ``nodes``.

        Args:
            recipe: Text as in `lit_gelu.activations.onnx_recipes`.

        Returns:
            The value of the last node.
        """
        result = self._names["x"]
        for statement in _statements(recipe):
            result = self._value(statement.value)
            if isinstance(statement, ast.Assign):
                self._names[_target(statement)] = result
        return result

    def _value(self, node: ast.expr) -> ir.Value:
        """Return the value that an expression stands for; nodes are made on the way."""
        if isinstance(node, ast.Call):
            domain, name = _operator(node.func)
            inputs = [self._value(argument) for argument in node.args]
            attributes = {keyword.arg or "": self._attribute(keyword.value) for keyword in node.keywords}
            self.nodes.append(ir.node(name, inputs, attributes=attributes, domain=domain))
            return self.nodes[-1].outputs[0]
        if isinstance(node, ast.Name) and node.id in self._names:
            return self._names[node.id]
        hint = node.id.lower() if isinstance(node, ast.Name) else "constant"
        return self._constant(np.asarray(self._plain(node), dtype=np.float32), hint)

    def _attribute(self, node: ast.expr) -> float | str:
        """Return a node attribute: a string as written, or a number."""
        value = self._plain(node)
        return value if isinstance(value, str) else float(np.asarray(value).item())

    def _plain(self, node: ast.expr) -> Argument | str:
        """Return the number, array or string that an expression without operators stands for."""
        if isinstance(node, ast.Name):
            return self._arguments[node.id]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return np.multiply(self._plain(node.left), self._plain(node.right), dtype=np.float64)
        value: float | str = ast.literal_eval(node)
        return value


@cache
def _statements(recipe: str) -> tuple[ast.Assign | ast.Expr, ...]:
    """Parse a recipe; only ``name = expression`` and expressions are allowed."""
    statements = []
    for statement in ast.parse(recipe).body:
        if not isinstance(statement, (ast.Assign, ast.Expr)):
            raise TypeError(f"a recipe is a sequence of assignments and expressions, not {ast.dump(statement)}")
        statements.append(statement)
    return tuple(statements)


def _target(statement: ast.Assign) -> str:
    """Return the name that an assignment gives."""
    (target,) = statement.targets
    if not isinstance(target, ast.Name):
        raise TypeError("a recipe assigns to plain names only")
    return target.id


def _operator(function: ast.expr) -> tuple[str, str]:
    """Return domain and name of an operator."""
    if isinstance(function, ast.Name):
        return "", function.id
    if (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "microsoft"
    ):
        return CONTRIB_DOMAIN, function.attr
    raise TypeError(f"no operator: {ast.unparse(function)}")
