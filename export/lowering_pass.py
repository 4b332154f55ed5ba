"""Replaces activations in an exported graph by the recipes of the lowering table."""

import ast
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience
from onnx_ir.passes import common as common_passes

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.inputs import SCOPE
from lit_gelu.export.lowering_table import LOWERINGS, TABLE, Lowering, row_key
from lit_gelu.export.markers import MARKER_DOMAIN, MARKER_OPERATOR, BoundActivation
from lit_gelu.export.recipe import CONTRIB_DOMAIN, Argument, RecipeBuilder, operators

CONTRIB_VERSION = 1
_COMPARISONS = frozenset({"Greater", "Less"})  # whose output is Boolean

# Standard operators that are one activation: what a call of torch.nn.functional becomes. By operator: the activation,
# and each attribute's argument and default.
_FUNCTIONAL: Mapping[str, tuple[str, Mapping[str, tuple[str, Argument | str]]]] = {
    "Gelu": ("gelu", {"approximate": ("approximate", "none")}),
    "Elu": ("elu", {"alpha": ("alpha", 1.0)}),
    "Celu": ("celu", {"alpha": ("alpha", 1.0)}),
    "LeakyRelu": ("leaky_relu", {"alpha": ("negative_slope", 0.01)}),
    "Selu": ("selu", {}),
    "Mish": ("mish", {}),
    "HardSwish": ("hard_swish", {}),
}


@dataclass(frozen=True)
class LoweredSite:
    """What became of one activation site.

    Args:
        site: Fully qualified name of the module; for a call of a function, the module that calls it and the activation,
            joined by a colon.
        activation: The activation, with the row of the lowering table.
        lowering: Whose recipe was taken: ``native``, ``primitives`` or ``contrib``.
        operators: The operators of one call.
        calls: How often the graph calls it; 0 if ``forward`` never reaches it.
    """

    site: str
    activation: BoundActivation
    lowering: Lowering
    operators: tuple[str, ...]
    calls: int


@dataclass(frozen=True)
class _Occurrence:
    """One activation call found in the graph."""

    site: str
    activation: BoundActivation
    x: ir.Value


def lower(
    model: ir.Model, marked: Mapping[str, BoundActivation], lowering: Lowering, *, explicit: bool = True
) -> list[LoweredSite]:
    """Replace every marker, and every activation operator that came from a function call, by its recipe.

    Args:
        model: The exported model; changed in place.
        marked: The marked sites.
        lowering: Which recipes to take.
        explicit: Whether the caller asked for this lowering by name; then it must apply to something.

    Returns:
        One row a site, marked ones first, unreached ones included.

    Raises:
        ExportOptionError: If the lowering was asked for and has a recipe for none of the model's activations.
    """
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    found = [(node, o) for node in nodes if (o := _occurrence(node, marked)) is not None]
    activations = {**marked, **{o.site: o.activation for _, o in found}}
    if explicit:
        _require_applicable(activations, lowering)
    constants = _Constants(model.graph)
    for node, _ in found:
        occurrence = _occurrence(node, marked)  # again: its input may have been replaced since
        if occurrence is not None:
            _replace(node, occurrence, lowering, constants)
    common_passes.RemoveUnusedNodesPass()(model)
    imports = model.graph.opset_imports
    imports.pop(MARKER_DOMAIN, None)
    calls = Counter(o.site for _, o in found)
    rows = [_row(site, activation, lowering, calls[site]) for site, activation in activations.items()]
    if any(operator.startswith(CONTRIB_DOMAIN) for row in rows for operator in row.operators):
        imports[CONTRIB_DOMAIN] = CONTRIB_VERSION
    return rows


def _row(site: str, activation: BoundActivation, lowering: Lowering, calls: int) -> LoweredSite:
    """Say what became of a site."""
    taken, recipe = TABLE[activation.row].recipe(lowering)
    return LoweredSite(site, activation, taken, tuple(operators(recipe)), calls)


def _require_applicable(activations: Mapping[str, BoundActivation], lowering: Lowering) -> None:
    """Refuse a lowering that has a recipe for none of the activations."""
    rows = {activation.row: TABLE[activation.row] for activation in activations.values()}
    if lowering == "native" or any(row.applies(lowering) for row in rows.values()):
        return
    applying = [name for name in LOWERINGS if any(row.applies(name) for row in rows.values())]
    names = ", ".join(sorted(rows)) or "none that the lowering table knows"
    raise ExportOptionError(
        f"lowering={lowering!r} does not apply: it has no recipe for any activation of this model ({names}). Lowerings "
        f"that apply: {', '.join(map(repr, applying or ['native']))}, or 'auto'."
    )


def _occurrence(node: ir.Node, marked: Mapping[str, BoundActivation]) -> _Occurrence | None:
    """Return the activation call that a node is: a marker, or what a call of torch.nn.functional became."""
    if node.domain == MARKER_DOMAIN and node.op_type == MARKER_OPERATOR:
        site = node.attributes["site"].as_string()
        return _Occurrence(site, marked[site], _input(node))
    activation, x = _functional(node) if node.domain == "" else (None, None)
    return None if activation is None or x is None else _Occurrence(_calling_site(node, activation), activation, x)


def _functional(node: ir.Node) -> tuple[BoundActivation | None, ir.Value | None]:
    """Return the activation that a call of torch.nn.functional became, and its input."""
    if node.op_type in _FUNCTIONAL:
        name, attributes = _FUNCTIONAL[node.op_type]
        arguments = {}
        for attribute, (argument, default) in attributes.items():
            given = node.attributes.get(attribute)
            arguments[argument] = default if given is None else _attribute(given)
        return BoundActivation(name, row_key(name, arguments) or name, arguments), _input(node)
    if node.op_type == "Log":
        inner = _input(node).producer()
        if inner is not None and inner.op_type == "Sigmoid" and inner.domain == "":
            return BoundActivation("log_sigmoid", "log_sigmoid"), _input(inner)
    if node.op_type == "Mul" and len(node.inputs) == 2:
        for x, gate in (node.inputs, reversed(node.inputs)):
            inner = gate.producer() if gate is not None else None
            if inner is not None and inner.op_type == "Sigmoid" and inner.domain == "" and inner.inputs[0] is x:
                return BoundActivation("silu", "silu"), x
    return None, None


def _attribute(attribute: ir.Attr) -> Argument | str:
    """Return the value of a string or float attribute."""
    return attribute.as_string() if attribute.type == ir.AttributeType.STRING else attribute.as_float()


def _input(node: ir.Node) -> ir.Value:
    """Return a node's first input."""
    value = node.inputs[0]
    if value is None:
        raise ValueError(f"{node.op_type} has no input")
    return value


def _calling_site(node: ir.Node, activation: BoundActivation) -> str:
    """Return ``module:activation`` for a call of a function, from the scopes that torch's exporter notes."""
    scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    module = scopes[-2] if len(scopes) > 1 else ""
    return f"{module.removeprefix(SCOPE).removeprefix('.')}:{activation.row}"


class _Constants:
    """Initializers for constants; equal ones are shared."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._known: dict[tuple[bytes, str, tuple[int, ...]], ir.Value] = {}

    def of_dtype(self, dtype: ir.DataType) -> Callable[[np.ndarray, str], ir.Value]:
        """Return a function that makes initializers of a dtype."""

        def constant(array: np.ndarray, hint: str) -> ir.Value:
            array = array.astype(dtype.numpy())
            key = (array.tobytes(), str(array.dtype), array.shape)
            if key not in self._known:
                name = f"lit_gelu.{hint}_{len(self._known)}"
                value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
                value.dtype, value.shape = dtype, ir.Shape(array.shape)
                self._graph.initializers[name] = value
                self._known[key] = value
            return self._known[key]

        return constant


def _replace(node: ir.Node, occurrence: _Occurrence, lowering: Lowering, constants: _Constants) -> None:
    """Put the recipe's nodes in the place of one occurrence."""
    x = occurrence.x
    given = occurrence.activation.arguments
    channel_dim = int(given.get("channel_dim", 1))
    arguments = {key: _shaped(value, x, channel_dim) for key, value in given.items()}
    dtype = x.dtype or ir.DataType.FLOAT
    builder = RecipeBuilder(x, arguments, constants.of_dtype(dtype))
    result = builder.build(TABLE[occurrence.activation.row].recipe(lowering)[1])
    for new in builder.nodes:
        new.metadata_props["lit_gelu.site"] = occurrence.site
        for output in new.outputs:  # every recipe is elementwise
            output.dtype = ir.DataType.BOOL if new.op_type in _COMPARISONS else dtype
            output.shape = x.shape
    convenience.replace_nodes_and_values(_graph(node), node, [node], builder.nodes, [node.outputs[0]], [result])


def _graph(node: ir.Node) -> ir.Graph | ir.Function:
    """Return the graph that a node is in: the model's, or a subgraph of a conditional."""
    if node.graph is None:
        raise ValueError(f"{node.op_type} is in no graph")
    return node.graph


def _shaped(value: Argument | str, x: ir.Value, channel_dim: int) -> Argument:
    """Give a vector with one entry a channel the shape that broadcasts along the channels' dimension of ``x``."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.size > 1 and x.shape is not None:
        after = -channel_dim - 1 if channel_dim < 0 else len(x.shape) - 1 - channel_dim
        return value.reshape(-1, *[1] * after)
    return value  # type: ignore[return-value]
