"""Are the nodes of each activation those of the recipe that the file records for it?"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from lit_gelu.export.lowering.recipe import Argument, RecipeBuilder, names_in
from lit_gelu.export.metadata import SiteRecord
from lit_gelu.export.parity.activation_census import node_label
from lit_gelu.export.parity.subgraph import site_of

REGION = "fp32: "  # in front of a recipe that is computed in float32 between two Casts
_16_BIT = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})


def nodes_by_site(model: onnx.ModelProto) -> dict[str, list[onnx.NodeProto]]:
    """Return the nodes of every activation, in the graph's order, those of subgraphs after them.

    Args:
        model: The file.

    Returns:
        Nodes by site.
    """
    found: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in _all_nodes(model.graph):
        site = site_of(node)
        if site is not None:
            found[site].append(node)
    return dict(found)


def recipe_fault(
    record: SiteRecord,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, onnx.TensorProto],
    arguments: Mapping[str, Argument | str] | None,
) -> str:
    """Say in what a site's nodes are not the recorded recipe: operators, their order, attributes or constants.

    Args:
        record: What the file says of the site.
        nodes: Its nodes, one call after the other.
        constants: The graph's constants by name.
        arguments: The activation's arguments; of those that are missing, any value is right. ``None``: all are.

    Returns:
        What is different; empty for nothing.
    """
    size = len(record.operators)
    if len(nodes) != size * record.calls:
        return f"{len(nodes)} nodes are there, {record.calls} calls of {size} are recorded"
    for call in (nodes[start : start + size] for start in range(0, len(nodes), max(size, 1))):
        operators = tuple(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in call)
        if operators != record.operators:
            return f"{', '.join(map(node_label, call))} is there, {', '.join(record.operators)} is recorded"
        difference = _difference(call, record.recipe, constants, arguments or {}) if record.recipe else ""
        if difference:
            return difference
    return ""


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, then those of its subgraphs."""
    yield from graph.node
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _all_nodes(inner)


def _difference(
    call: Sequence[onnx.NodeProto],
    recipe: str,
    constants: Mapping[str, onnx.TensorProto],
    arguments: Mapping[str, Argument | str],
) -> str:
    """Say in what one call's nodes are not a recipe's."""
    inner = list(call)
    if recipe.startswith(REGION):
        first, *inner, last = call
        if _cast_to(first) != {onnx.TensorProto.FLOAT} or not _cast_to(last) <= _16_BIT:
            return "the Casts about it are others than recorded"
    wanted = _built(recipe.removeprefix(REGION), arguments)
    made = {name for node in inner for name in node.output}
    names = {"x": next((n for node in inner for n in node.input if n not in made and n not in constants), "")}
    for node, expected in zip(inner, wanted, strict=True):
        text = _attribute_difference(node, expected) or _input_difference(node, expected, names, constants)
        if text:
            return f"{node_label(node)} {text}, where {recipe} is recorded"
        names[_name(expected.outputs[0])] = node.output[0]
    return ""


def _cast_to(node: onnx.NodeProto) -> set[int]:
    """Return the type that a Cast gives."""
    return {attribute.i for attribute in node.attribute if attribute.name == "to"}


def _built(recipe: str, arguments: Mapping[str, Argument | str]) -> list[ir.Node]:
    """Return a recipe's nodes with constants of their own; NaN stands for one that is not known."""
    numbers = itertools.count()

    def constant(array: np.ndarray, _: str) -> ir.Value:
        return ir.Value(name=f"constant_{next(numbers)}", const_value=ir.tensor(array))

    unknown = {name: float("nan") for name in names_in(recipe)}
    builder = RecipeBuilder(ir.Value(name="x"), {**unknown, **arguments}, constant)  # type: ignore[dict-item]
    builder.build(recipe)
    for number, node in enumerate(builder.nodes):
        node.outputs[0].name = f"node_{number}"
    return builder.nodes


def _attribute_difference(node: onnx.NodeProto, expected: ir.Node) -> str:
    """Say which attribute is another one."""
    there = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    wanted = {name: attribute.value for name, attribute in expected.attributes.items()}
    for name in sorted(there.keys() | wanted.keys()):
        a, b = _plain(there.get(name)), _plain(wanted.get(name))
        same = (
            _close(*(np.asarray(v, np.float32) for v in (a, b)))
            if isinstance(a, float) and isinstance(b, float)
            else a == b
        )
        if not same:
            return f"has {name}={a!r} and should have {b!r}"
    return ""


def _plain(value: Any) -> Any:
    """Return an attribute's text as text."""
    return value.decode() if isinstance(value, bytes) else value


def _input_difference(
    node: onnx.NodeProto, expected: ir.Node, names: Mapping[str, str], constants: Mapping[str, onnx.TensorProto]
) -> str:
    """Say which input is another one."""
    if len(node.input) != len(expected.inputs):
        return f"has {len(node.input)} inputs and should have {len(expected.inputs)}"
    for place, (given, value) in enumerate(zip(node.input, expected.inputs, strict=True)):
        if value is None or value.const_value is None:
            if given != names[_name(value)]:
                return f"reads another value as input {place}"
            continue
        if given not in constants:
            return f"reads no constant as input {place}"
        there, wanted = numpy_helper.to_array(constants[given]), value.const_value.numpy()
        if there.size != wanted.size and not np.isnan(wanted).all():
            return f"has {there.size} constants as input {place} and should have {wanted.size}"
        if not _close(there.ravel(), wanted.ravel()):
            return f"has the constant {there.ravel()[:1]} as input {place} and should have {wanted.ravel()[:1]}"
    return ""


def _name(value: ir.Value | None) -> str:
    """Return a value's name."""
    return "" if value is None or value.name is None else value.name


def _close(there: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether constants agree to the last place: those of learned parameters went through exp or softplus."""
    there = np.asarray(there)
    with np.errstate(over="ignore"):
        rounded = np.asarray(wanted).astype(there.dtype).astype(np.float64)
    step = 2.0 * float(np.finfo(there.dtype).eps) if there.dtype.kind == "f" else 2.0**-7
    unknown = np.isnan(rounded)
    return bool(np.all(unknown | np.isclose(there.astype(np.float64), rounded, rtol=step, atol=0)))
