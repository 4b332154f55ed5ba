"""Reads recipes, as `lit_gelu.activations.onnx_recipes` and ``register(..., onnx=...)`` have them, and builds nodes."""

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from lit_gelu.activations.onnx_recipes import OnnxCases, OnnxRecipes
from lit_gelu.errors import ArgumentError

CONTRIB_DOMAIN = "com.microsoft"
CONSTANTS: Mapping[str, float] = {
    "SQRT_2": math.sqrt(2.0),
    "SQRT_HALF": math.sqrt(0.5),
    "SQRT_2_OVER_PI": math.sqrt(2.0 / math.pi),
    "ONE_SIXTH": 1.0 / 6.0,
    "ONE_OVER_PI": 1.0 / math.pi,
    "HALF_PI": math.pi / 2.0,
    "SELU_ALPHA": 1.6732632423543772848170429916717,
    "SELU_SCALE": 1.0507009873554804934193349852946,
}

Argument = float | np.ndarray


@cache
def operators(recipe: str) -> tuple[str, ...]:
    """Return the operators of a recipe in the order of the nodes, ``domain::Name`` for those that are not standard."""
    results: list[str] = []

    def visit(node: ast.expr) -> None:
        if isinstance(node, ast.Call):
            for argument in node.args:
                visit(argument)
            domain, name = _operator(node.func)
            results.append(f"{domain}::{name}" if domain else name)

    for statement in _statements(recipe):
        visit(statement.value)
    return tuple(results)


def names_in(recipe: str) -> set[str]:
    """Return the arguments that a recipe mentions: no ``x``, operators, names that it assigns, constants."""
    statements = _statements(recipe)
    nodes = [node for statement in statements for node in ast.walk(statement.value)]
    functions = {id(part) for node in nodes if isinstance(node, ast.Call) for part in ast.walk(node.func)}
    assigned = {_target(statement) for statement in statements if isinstance(statement, ast.Assign)}
    names = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions}
    return names - assigned - CONSTANTS.keys() - {"x"}


class RecipeBuilder:
    """Builds the nodes of one recipe; ``constant`` makes an initializer from an array and a hint for its name."""

    def __init__(
        self, x: ir.Value, arguments: Mapping[str, Argument], constant: Callable[[np.ndarray, str], ir.Value]
    ) -> None:
        self._names = {"x": x, **{name: value for name, value in arguments.items() if isinstance(value, ir.Value)}}
        self._arguments = {**CONSTANTS, **arguments}
        self._constant = constant
        self.nodes: list[ir.Node] = []

    def build(self, recipe: str) -> ir.Value:
        """Build the nodes, inner ones first, into ``nodes``; return the value of the last."""
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
            attributes = {k.arg or "": self._attribute("" if domain else name, k) for k in node.keywords}
            self.nodes.append(ir.node(name, inputs, attributes=attributes, domain=domain))
            return self.nodes[-1].outputs[0]
        if isinstance(node, ast.Name) and node.id in self._names:
            return self._names[node.id]
        hint = node.id.lower() if isinstance(node, ast.Name) else "constant"
        return self._constant(np.asarray(self._plain(node), dtype=np.float64), hint)

    def _attribute(self, operator: str, keyword: ast.keyword) -> float | str:
        """Return a node attribute: a string as written, or a number."""
        value = self._plain(keyword.value)
        if isinstance(value, str):
            return value
        number = float(np.asarray(value).item())
        if keyword.arg not in _whole_number_attributes(operator) or math.isnan(
            number
        ):  # which stands for an argument that is not known
            return number
        if not number.is_integer():
            raise ValueError(f"{ast.unparse(keyword)} is no whole number, which {operator} takes there")
        return int(number)

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


@cache
def _whole_number_attributes(operator: str) -> frozenset[str]:
    """Return which attributes of a standard operator are whole numbers."""
    if not onnx.defs.has(operator):
        return frozenset()
    attributes = onnx.defs.get_schema(operator).attributes
    return frozenset(name for name, entry in attributes.items() if entry.type == onnx.defs.OpSchema.AttrType.INT)


def _target(statement: ast.Assign) -> str:
    """Return the name that an assignment gives."""
    (target,) = statement.targets
    if not isinstance(target, ast.Name):
        raise TypeError("a recipe assigns to plain names only")
    return target.id


def _operator(function: ast.expr) -> tuple[str, str]:
    """Return domain and name of an operator."""
    match function:
        case ast.Name(id=name):
            return "", name
        case ast.Attribute(value=ast.Name(id="microsoft"), attr=name):
            return CONTRIB_DOMAIN, name
    raise TypeError(f"no operator: {ast.unparse(function)}")


def user_row(name: str, onnx: Any, arguments: Mapping[str, Any]) -> OnnxRecipes | None:
    """Return what a registration's ``onnx=`` says for these arguments; ``None`` if they are no case of it."""
    if isinstance(onnx, OnnxCases):
        case = onnx.case(arguments)
        if case is not None and case not in onnx.recipes:
            raise ArgumentError(
                f"{name!r} was registered with recipes for {', '.join(map(repr, onnx.recipes))}, and its case is "
                f"{case!r}. Return one of these, or None, which leaves it to torch's exporter."
            )
        onnx = None if case is None else onnx.recipes[case]
    if onnx is None:
        return None
    recipes = OnnxRecipes(native=onnx) if isinstance(onnx, str) else onnx
    if not isinstance(recipes, OnnxRecipes) or (recipes.native is None and recipes.primitives is None):
        raise ArgumentError(
            f"{name!r} was registered with onnx={onnx!r}. Accepted: a recipe as text, such as 'Mul(x, Sigmoid(x))', "
            "OnnxRecipes with native= or primitives=, or OnnxCases of them."
        )
    for recipe in (*recipes.texts, *(spelling.formula for spelling in recipes.spellings)):
        _require_readable(name, recipe, arguments)
    return recipes


def _require_readable(name: str, recipe: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a recipe that cannot be built."""
    values = {"bias": ir.Value(name="bias"), **arguments}
    builder = RecipeBuilder(ir.Value(name="x"), values, lambda _, hint: ir.Value(name=hint))
    try:
        builder.build(recipe)
        unknown = [operator for operator in operators(recipe) if "::" not in operator and not onnx.defs.has(operator)]
        problem = f"ONNX has no operator {unknown[0]}" if unknown else "" if builder.nodes else "it has no operator"
    except KeyError as error:
        problem = f"the activation has no argument {error}"
    except (SyntaxError, TypeError, ValueError) as error:
        problem = str(error)
    if problem:
        raise ArgumentError(
            f"the recipe that {name!r} was registered with cannot be read: {recipe!r} ({problem}). Accepted: operators "
            "within each other, such as 'Mul(x, Sigmoid(x))', onnxruntime's own as microsoft.Name."
        )


class Constants:
    """Initializers of a graph for constants; equal ones are shared."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._values: dict[tuple[bytes, str, tuple[int, ...]], ir.Value] = {}

    def value(self, array: np.ndarray, hint: str) -> ir.Value:
        """Return the initializer that holds an array; its name has the hint in it."""
        key = (array.tobytes(), str(array.dtype), array.shape)
        if key not in self._values:
            name = f"lit_gelu.{hint}_{len(self._values)}"
            while name in self.graph.initializers:
                name += "_"
            tensor = ir.tensor(array, name=name)
            value = ir.Value(
                name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype)
            )
            self.graph.initializers[name] = self._values[key] = value
        return self._values[key]

    def floats(self, dtype: ir.DataType) -> Callable[[np.ndarray, str], ir.Value]:
        """Return a function that makes initializers of a floating-point dtype."""
        return lambda array, hint: self.value(array.astype(np.float32).astype(dtype.numpy()), hint)

    def integers(self, *numbers: int) -> ir.Value:
        """Return a vector of whole numbers."""
        return self.value(np.array(numbers, np.int64), "integers")


def infer_types(nodes: Sequence[ir.Node], dtype: ir.DataType, shape: ir.Shape | None, opset: int) -> None:
    """Give outputs the types and shapes that onnx infers; those given for an operator that is not standard."""
    imports = [onnx.helper.make_opsetid("", opset)]
    for node in nodes:
        proto, types = onnx.NodeProto(op_type=node.op_type), {}
        for i, value in enumerate(node.inputs):
            proto.input.append("" if value is None else f"input_{i}")
            if value is not None and value.type is not None:
                info = onnx.ValueInfoProto()
                ir.serde.serialize_value_into(info, value, name=proto.input[i])
                types[info.name] = info.type
        for i, output in enumerate(node.outputs):
            proto.output.append(f"output_{i}")
            if node.domain not in {"", "ai.onnx"}:
                output.dtype, output.shape = dtype, shape
        for attribute in node.attributes.values():
            proto.attribute.append(ir.serde.serialize_attribute(attribute))
        try:
            schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
            results = onnx.shape_inference.infer_node_outputs(schema, proto, types, opset_imports=imports)
        except (KeyError, onnx.defs.SchemaError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue  # not standard, or wrong, which the checker of the whole file says
        for output, name in zip(node.outputs, proto.output, strict=True):
            if name in results:
                output.type = ir.serde.deserialize_type_proto_for_type(results[name])
                output.shape = ir.serde.deserialize_type_proto_for_shape(results[name])
