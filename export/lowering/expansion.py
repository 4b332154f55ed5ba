"""What a value of a graph is as a formula of another: the expansion of its nodes, one operator after the other."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from lit_gelu.export.lowering.algebra import (
    FUNCTIONS,
    Function,
    NotAFormulaError,
    Sum,
    Term,
    add,
    apply,
    function_of,
    multiply,
    number,
    scaled,
    variable,
)

_LARGEST_ARRAY = 1 << 14  # one value a channel, not a weight matrix


def expand(value: ir.Value, x: ir.Value, depth: int = 12) -> Sum:
    """Return a value of a graph as a formula of another.

    Args:
        value: The value.
        x: The variable.
        depth: How many nodes deep to look.

    Returns:
        The formula.

    Raises:
        NotAFormulaError: If it depends on anything else, or is no short formula.
    """
    if value is x:
        return variable()
    constant = constant_of(value)
    if constant is not None:
        return number(constant)
    node = value.producer()
    if node is None or depth == 0 or node.domain not in {"", "ai.onnx"} or len(node.outputs) != 1:
        raise NotAFormulaError
    rule = _RULES.get(node.op_type)
    if rule is None and node.op_type not in FUNCTIONS:
        raise NotAFormulaError
    inputs = [expand(given, x, depth - 1) for given in node.inputs if given is not None]
    return rule(inputs, node) if rule is not None else apply(node.op_type, *inputs)


def constant_of(value: ir.Value) -> np.ndarray | None:
    """Return a constant's value: a number, or an array as it broadcasts.

    Args:
        value: A value of a graph.

    Returns:
        float64, 0-dimensional if it has one element; ``None`` if it is none, or a large one.
    """
    tensor = value.const_value
    node = value.producer()
    if tensor is None and node is not None and node.op_type == "Constant":
        attribute = node.attributes.get("value")
        tensor = attribute.as_tensor() if attribute is not None else None
    if tensor is None or tensor.size > _LARGEST_ARRAY or tensor.dtype == ir.DataType.STRING:
        return None
    array: np.ndarray = tensor.numpy().astype(np.float64)
    return array.reshape(()) if array.size == 1 else array


def _power(inputs: list[Sum], _: ir.Node) -> Sum:
    exponent = inputs[1]
    if len(exponent) != 1 or exponent[0].power or exponent[0].functions or exponent[0].constant.ndim:
        raise NotAFormulaError
    times = float(exponent[0].constant)
    if times not in {1.0, 2.0, 3.0, 4.0}:
        raise NotAFormulaError
    product = inputs[0]
    for _i in range(int(times) - 1):
        product = multiply(product, inputs[0])
    return product


def _divide(inputs: list[Sum], _: ir.Node) -> Sum:
    top, bottom = inputs
    if len(bottom) == 1 and not bottom[0].power and not bottom[0].functions and np.all(bottom[0].constant):
        return scaled(top, 1.0 / bottom[0].constant)
    return multiply(top, apply("Reciprocal", bottom))


def _clip(inputs: list[Sum], node: ir.Node) -> Sum:
    """Return ``Clip(z, 0, b)`` as b times a cut to [0, 1]; others are no part of a known formula."""
    if len(inputs) != 3 or inputs[1] or node.inputs[1] is None:
        raise NotAFormulaError
    return _cut(inputs[0], inputs[2])


def _minimum(inputs: list[Sum], _: ir.Node) -> Sum:
    """Return ``Min(Relu(z), b)``, as onnxscript writes ReLU6 up to 0.7.0, like ``Clip(z, 0, b)``."""
    match inputs:
        case [(Term(power=0, functions=(Function("Relu", (z,)),)) as relu,), upper] if relu.constant == 1.0:
            return _cut(z, upper)
    raise NotAFormulaError


def _cut(z: Sum, bound: Sum) -> Sum:
    """Return what is cut to [0, bound] as bound times a cut to [0, 1]."""
    if len(bound) != 1 or bound[0].power or bound[0].functions:
        raise NotAFormulaError
    upper = bound[0].constant
    if upper.ndim or upper <= 0:
        raise NotAFormulaError
    return scaled(function_of("Cut", scaled(z, 1.0 / upper)), upper)


def _hard_sigmoid(inputs: list[Sum], node: ir.Node) -> Sum:
    alpha, beta = (
        node.attributes[name].as_float() if name in node.attributes else default
        for name, default in (("alpha", 0.2), ("beta", 0.5))
    )
    return function_of("Cut", add(scaled(inputs[0], alpha), number(beta)))


_RULES: Mapping[str, Callable[[list[Sum], ir.Node], Sum]] = {
    "Add": lambda inputs, _: add(*inputs),
    "Sub": lambda inputs, _: add(inputs[0], scaled(inputs[1], -1.0)),
    "Neg": lambda inputs, _: scaled(inputs[0], -1.0),
    "Mul": lambda inputs, _: multiply(*inputs),
    "Div": _divide,
    "Pow": _power,
    "Reciprocal": lambda inputs, _: apply("Reciprocal", inputs[0]),
    "Identity": lambda inputs, _: inputs[0],
    "Clip": _clip,
    "Relu": lambda inputs, _: function_of("Relu", inputs[0]),
    "Min": _minimum,
    "HardSigmoid": _hard_sigmoid,
    "Where": lambda inputs, _: apply("Where", *inputs),
    "Greater": lambda inputs, _: function_of("Greater", *inputs),
    "Less": lambda inputs, _: function_of("Less", *inputs),
}
