"""Finds activations that were written by hand, or called as functions, and marks each as one node.

A spelling is recognised as a formula (`lit_gelu.export.lowering.algebra`), so the order of factors and operands, and
where a constant is multiplied in, do not matter. Constants must be those of the formula up to float32's rounding: what
somebody wrote with 0.7071 for the root of one half is another function and is left alone.

What is recognised: GELU (with erf, erfc or ndtr), its tanh and sigmoid forms, SiLU and Swish with any beta (one value a
channel too), Mish, HardSwish, Softplus (torch's, with its threshold), log-sigmoid, ``erfc``, ``ndtr``, ``log_ndtr``,
and the operators that stand for a call of ``torch.nn.functional``.
"""

import ast
import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience

from lit_gelu.export.inputs import SCOPE
from lit_gelu.export.lowering.algebra import (
    NotAFormulaError,
    Sum,
    add,
    apply,
    close,
    constant_of,
    expand,
    multiply,
    number,
    same,
    scaled,
    variable,
)
from lit_gelu.export.lowering.markers import MARKER_DOMAIN, MARKER_OPERATOR, BoundActivation
from lit_gelu.export.lowering.recipe import Argument
from lit_gelu.export.lowering.table import row_key

Recognised = tuple[BoundActivation, ir.Value]

# Standard operators that are one activation: what a call of torch.nn.functional becomes. By operator: the activation,
# and each attribute's argument and default.
_OPERATORS: Mapping[str, tuple[str, Mapping[str, tuple[str, Argument | str]]]] = {
    "Gelu": ("gelu", {"approximate": ("approximate", "none")}),
    "Elu": ("elu", {"alpha": ("alpha", 1.0)}),
    "Celu": ("celu", {"alpha": ("alpha", 1.0)}),
    "LeakyRelu": ("leaky_relu", {"alpha": ("negative_slope", 0.01)}),
    "Selu": ("selu", {}),
    "Mish": ("mish", {}),
    "HardSwish": ("hard_swish", {}),
    "Softplus": ("softplus", {}),
    "Sigmoid": ("sigmoid", {}),
    "Tanh": ("tanh", {}),
    "Relu": ("relu", {}),
}
_ROOTS = frozenset({"Mul", "Div", "Add", "Sub", "Neg", "Log", "Where"})
_WITHIN = frozenset({
    *_ROOTS, "Erf", "Tanh", "Sigmoid", "Exp", "Softplus", "Clip", "Relu", "Min", "HardSigmoid", "Pow", "Greater",
    "Less", "Reciprocal", "Identity",
})  # fmt: skip
_TELLING = frozenset({"Erf", "Tanh", "Sigmoid", "Exp", "Softplus", "Clip", "Min", "HardSigmoid"})
_DEPTH = 12
_LARGEST_CONE = 40


def _with_gate(gate: Sum) -> Sum:
    """Return ``x gate``."""
    return multiply(variable(), gate)


def _formulas() -> dict[str, Sum]:
    """Return the formulas without arguments, by row of the lowering table."""
    half_erf = add(number(0.5), scaled(apply("Erf", variable(math.sqrt(0.5))), 0.5))
    inner = add(variable(math.sqrt(2 / math.pi)), variable(0.044715 * math.sqrt(2 / math.pi), 3))
    complement = add(number(1.0), scaled(apply("Erf", variable()), -1.0))
    # torch writes log_ndtr(x) as Where(x < 1, Log(erfcx(-z) / 2) - z^2, Log(1 - erfc(z) / 2)), with z = x / sqrt(2)
    squared = variable(0.5, 2)
    scaled_erfc = multiply(apply("Exp", squared), half_erf)
    log_ndtr = apply(
        "Where",
        apply("Less", variable(), number(1.0)),
        add(apply("Log", scaled_erfc), scaled(squared, -1.0)),
        apply("Log", half_erf),
    )
    return {
        "gelu(approximate='none')": _with_gate(half_erf),
        "gelu(approximate='tanh')": _with_gate(add(number(0.5), scaled(apply("Tanh", inner), 0.5))),
        "mish": _with_gate(apply("Tanh", apply("Softplus", variable()))),
        "hard_swish": _with_gate(apply("Cut", add(variable(1 / 6), number(0.5)))),
        "log_sigmoid": scaled(apply("Softplus", variable(-1.0)), -1.0),
        "log_sigmoid(Log)": apply("Log", apply("Sigmoid", variable())),
        "softplus(beta=1)": apply("Softplus", variable()),
        "erfc": complement,
        "ndtr": half_erf,
        "log_ndtr": log_ndtr,
    }


_FORMULAS = _formulas()
_ARGUMENTS: Mapping[str, tuple[str, Mapping[str, Argument | str]]] = {
    "gelu(approximate='none')": ("gelu", {"approximate": "none"}),
    "gelu(approximate='tanh')": ("gelu", {"approximate": "tanh"}),
    "log_sigmoid(Log)": ("log_sigmoid", {}),
    "softplus(beta=1)": ("softplus", {"beta": 1.0, "threshold": 20.0}),
}


def mark_spellings(model: ir.Model) -> dict[str, BoundActivation]:
    """Put a marker in the place of every activation that is not a module.

    Args:
        model: The exported model; changed in place.

    Returns:
        The activations by site: ``module:row``, the module that calls it and the activation's row.
    """
    found: dict[str, BoundActivation] = {}
    dead: set[int] = set()
    for node in reversed(list(ir.traversal.RecursiveGraphIterator(model.graph))):
        if _is_unused(node, dead):
            dead.add(id(node))
            continue
        recognised = recognise(node)
        if recognised is None:
            continue
        activation, x = recognised
        site = name = f"{calling_module(node)}:{activation.row}"
        others = 1
        while site in found and not _equal(found[site], activation):  # the same activation with other arguments
            others += 1
            site = f"{name}#{others}"
        found[site] = activation
        _mark(node, site, x)
        dead.add(id(node))
    return dict(reversed(list(found.items())))


def recognise(node: ir.Node) -> Recognised | None:
    """Return the activation that a node is the last of, and its input.

    Args:
        node: A node with one output.

    Returns:
        ``None`` if it is none.
    """
    if node.domain not in {"", "ai.onnx"} or len(node.outputs) != 1:
        return None
    if node.op_type in _ROOTS:
        cone = _cone(node)
        if any(inner.op_type in _TELLING for inner in cone):
            for x in _variables(node, cone):
                activation = _formula_of(node, x)
                if activation is not None:
                    return activation, x
    return _operator(node)


def calling_module(node: ir.Node) -> str:
    """Return the name of the module whose ``forward`` made a node, from the scopes that torch's exporter notes.

    Args:
        node: A node of an exported graph.

    Returns:
        Its fully qualified name; empty for the model itself, or where nothing was noted.
    """
    scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    module: str = scopes[-2] if len(scopes) > 1 else ""
    return module.removeprefix(SCOPE).removeprefix(".")


def _operator(node: ir.Node) -> Recognised | None:
    """Return the activation that a single operator is."""
    x = node.inputs[0] if node.inputs else None
    if x is None or node.op_type not in _OPERATORS:
        return None
    name, attributes = _OPERATORS[node.op_type]
    arguments: dict[str, Argument | str] = {}
    for attribute, (argument, default) in attributes.items():
        given = node.attributes.get(attribute)
        arguments[argument] = default if given is None else _attribute(given)
    return BoundActivation(name, row_key(name, arguments) or name, arguments), x


def _attribute(attribute: ir.Attr) -> Argument | str:
    """Return the value of a string or float attribute."""
    return attribute.as_string() if attribute.type == ir.AttributeType.STRING else attribute.as_float()


def _formula_of(node: ir.Node, x: ir.Value) -> BoundActivation | None:
    """Return the activation of ``x`` that a node computes."""
    try:
        formula = expand(node.outputs[0], x, _DEPTH)
    except NotAFormulaError:
        return None
    for row, known in _FORMULAS.items():
        if same(formula, known):
            name, arguments = _ARGUMENTS.get(row, (row, {}))
            return BoundActivation(name, row_key(name, arguments) or name, dict(arguments))
    return _swish(formula, x) or _softplus(formula)


def _swish(formula: Sum, x: ir.Value) -> BoundActivation | None:
    """Return Swish for ``x Sigmoid(beta x)``: SiLU for beta 1, GELU's sigmoid form for 1.702."""
    if len(formula) != 1 or formula[0].power != 1 or len(formula[0].functions) != 1:
        return None
    (function,) = formula[0].functions
    if function.name != "Sigmoid" or not close(formula[0].constant, 1.0) or len(function.arguments[0]) != 1:
        return None
    (inner,) = function.arguments[0]
    beta = inner.constant
    if inner.power != 1 or inner.functions or beta.ndim > (0 if x.shape is None else len(x.shape)):
        return None
    if close(beta, 1.0):
        return BoundActivation("silu", "silu")
    if close(beta, 1.702):
        return BoundActivation("gelu", "gelu(approximate='sigmoid')", {"approximate": "sigmoid"})
    arguments = {"beta": _shortest(beta) if beta.ndim == 0 else beta.astype(np.float32), "channel_dim": -1}
    return BoundActivation("swish", row_key("swish", arguments) or "swish", arguments)


def _softplus(formula: Sum) -> BoundActivation | None:
    """Return Softplus with its beta and threshold, as torch writes it."""
    if len(formula) != 1 or formula[0].power or len(formula[0].functions) != 1 or not close(formula[0].constant, 1.0):
        return None
    (function,) = formula[0].functions
    if function.name != "Where":
        return None
    condition, above, below = function.arguments
    if not (len(condition) == 1 and len(condition[0].functions) == 1 and condition[0].functions[0].name == "Greater"):
        return None
    z, limit = condition[0].functions[0].arguments
    if len(z) != 1 or z[0].power != 1 or z[0].functions or z[0].constant.ndim or len(limit) != 1 or limit[0].power:
        return None
    beta = _shortest(z[0].constant)
    if not same(above, variable()) or not same(below, scaled(apply("Softplus", z), 1.0 / float(z[0].constant))):
        return None
    arguments: dict[str, Argument | str] = {"beta": beta, "threshold": _shortest(limit[0].constant)}
    return BoundActivation("softplus", row_key("softplus", arguments) or "softplus", arguments)


def _shortest(value: np.ndarray) -> float:
    """Return the shortest number that float32 rounds to a constant of the graph: 1.3, not 1.2999999523."""
    return float(str(np.float32(value)))


def _cone(node: ir.Node) -> list[ir.Node]:
    """Return a node and what it is computed from, as far as formulas reach, nearest first."""
    cone, level = [node], [node]
    for _ in range(_DEPTH):
        producers = [v.producer() for inner in level for v in inner.inputs if v is not None]
        level = []
        for producer in producers:
            if producer is None or producer.op_type not in _WITHIN or any(producer is known for known in cone):
                continue
            cone.append(producer)
            level.append(producer)
        if not level or len(cone) > _LARGEST_CONE:
            break
    return cone


def _variables(node: ir.Node, cone: list[ir.Node]) -> Iterator[ir.Value]:
    """Give the values that a formula may be one of: those of the node's shape that the cone reads, nearest first."""
    shape, seen = node.outputs[0].shape, set()
    for inner in cone:
        for value in inner.inputs:
            if value is None or id(value) in seen or constant_of(value) is not None:
                continue
            seen.add(id(value))
            if value.dtype in {None, ir.DataType.FLOAT, ir.DataType.DOUBLE} and value.shape == shape:
                yield value


def _is_unused(node: ir.Node, dead: set[int]) -> bool:
    """Return whether only what was replaced reads a node's outputs."""
    return not any(value.is_graph_output() for value in node.outputs) and all(
        id(use.node) in dead for value in node.outputs for use in value.uses()
    )


def _mark(node: ir.Node, site: str, x: ir.Value) -> None:
    """Put a marker in the place of a node."""
    if node.graph is None:
        raise ValueError(f"{node.op_type} is in no graph")
    marker = ir.node(MARKER_OPERATOR, [x], attributes={"site": site}, domain=MARKER_DOMAIN)
    old, new = node.outputs[0], marker.outputs[0]
    new.type, new.shape = old.type, old.shape
    marker.metadata_props.update(node.metadata_props)
    convenience.replace_nodes_and_values(node.graph, node, [node], [marker], [old], [new])


def _equal(first: BoundActivation, second: BoundActivation) -> bool:
    """Return whether two activations are the same function."""
    return first.row == second.row and all(
        np.array_equal(np.asarray(first.arguments[key]), np.asarray(value)) for key, value in second.arguments.items()
    )
