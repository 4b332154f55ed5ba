"""Do module, record and graph agree on outputs and activations? What decides beside any number."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data
from torch import nn

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.naming.forms import function_spec
from lit_gelu.errors import LitGeluError
from lit_gelu.export.lowering.lowering_table import (
    TABLE,
    Argument,
    BoundActivation,
    RecipeBuilder,
    bind,
    names_in,
    recipe_texts,
)
from lit_gelu.export.metadata import FileMetadata, SiteRecord, versions
from lit_gelu.export.parity.report import ActivationFate
from lit_gelu.export.parity.runs import OutputSignature
from lit_gelu.export.runtime.model_file import read_model_file

SITE_PROPERTY = "lit_gelu.site"
# How onnxruntime names a value once a Cast has taken the old name over.
_RENAMED = ("{}", "InsertedPrecisionFreeCast_{}", "InsertedCast_{}")
_REORDERED = ("ReorderOutput", "ReorderInput")  # compute nothing: channels stand in blocks around convolutions


@dataclass(frozen=True)
class SiteNodes:
    """The nodes of one call of an activation site."""

    site: str
    call: int  # number of the call, from 0
    nodes: tuple[onnx.NodeProto, ...]
    x: str  # name of its input
    y: str  # name of its output


def site_of(node: onnx.NodeProto) -> str | None:
    """Return the site that a node belongs to."""
    return next((entry.value for entry in node.metadata_props if entry.key == SITE_PROPERTY), None)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, then those of its subgraphs."""
    yield from graph.node
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from all_nodes(inner)


def node_label(node: onnx.NodeProto) -> str:
    """Return an operator with what tells its variants apart, such as ``Gelu(tanh)`` or ``QuickGelu(alpha=1.702)``."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Gelu" and node.domain == "":
        return f"Gelu({attributes.get('approximate', b'none').decode()})"
    if node.op_type in {"QuickGelu", "ScaledSiLU"} and "alpha" in attributes:
        return f"{node.op_type}(alpha={attributes['alpha']:.6g})"
    return node.op_type


def full_name(node: onnx.NodeProto) -> str:
    """Return an operator with its domain, as files record it."""
    return node.op_type if node.domain in {"", "ai.onnx"} else f"{node.domain}::{node.op_type}"  # one domain, by ONNX


def load_structure(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return a file's graph; of weights that are kept beside it, only those of activations."""
    model = onnx.load(path, load_external_data=False)
    read = {name for node in all_nodes(model.graph) if site_of(node) is not None for name in node.input}
    for tensor in model.graph.initializer:
        if tensor.name in read and uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(read_model_file(path).path.parent))
    return model


def has_weights_beside(model: onnx.ModelProto) -> bool:
    """Return whether some of a file's weights are in another file."""
    return any(uses_external_data(tensor) for tensor in model.graph.initializer)


def sites_in_subgraphs(model: onnx.ModelProto) -> set[str]:
    """Return the sites that are called within a branch or a loop."""
    inner = itertools.islice(all_nodes(model.graph), len(model.graph.node), None)
    return {site for node in inner if (site := site_of(node)) is not None}


def site_nodes(model: onnx.ModelProto, calls: Mapping[str, int]) -> list[SiteNodes]:
    """Find every call of every site in a graph, in the graph's order."""
    # Left out: a call whose nodes have several inputs or outputs, a site whose nodes its calls do not divide evenly,
    # and one that is called within a branch or loop too.
    inner = sites_in_subgraphs(model)
    members: dict[str, list[int]] = {}
    fixed = {tensor.name for tensor in model.graph.initializer}
    readers: dict[str, set[int]] = {value.name: {-1} for value in model.graph.output}
    for i, node in enumerate(model.graph.node):
        for name in node.input:
            readers.setdefault(name, set()).add(i)
        site = site_of(node)
        if site is not None and site not in inner:
            members.setdefault(site, []).append(i)
    entries: list[SiteNodes] = []
    for site, places in members.items():
        count = calls.get(site, 0)
        size, rest = divmod(len(places), count) if count else (0, 1)
        for call in range(0 if rest else count):
            inside = places[call * size : (call + 1) * size]
            nodes = [model.graph.node[i] for i in inside]
            produced = {name for node in nodes for name in node.output if name}
            inputs = {name for node in nodes for name in node.input if name} - produced - fixed
            outputs = {name for name in produced if readers.get(name, set()).difference(inside)}
            if len(inputs) == len(outputs) == 1:
                entries.append(SiteNodes(site, call, tuple(nodes), *inputs, *outputs))
    order = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
    return sorted(entries, key=lambda entry: order[entry.y])


def fates(entries: Sequence[SiteNodes], optimized: onnx.ModelProto) -> list[ActivationFate]:
    """Say what became of every call of every site in onnxruntime's own optimised graph."""
    # A fused operator keeps the name of the value that it computes, so what computes the site's output now is what the
    # site became, with whatever is left of the site's own intermediate values.
    producer = {name: node for node in optimized.graph.node for name in node.output if name}

    def computing(name: str) -> onnx.NodeProto | None:
        """Return what computes a value, behind the Casts and changes of layout that onnxruntime inserts."""
        candidates = [producer[key] for pattern in _RENAMED if (key := pattern.format(name)) in producer]
        node = next((node for node in candidates if node.op_type != "Cast"), next(iter(candidates), None))
        while node is not None and node.op_type in _REORDERED and node.input[0] in producer:
            node = producer[node.input[0]]
        return node

    result = []
    for entry in entries:
        last = computing(entry.y)
        inner = (computing(name) for node in entry.nodes for name in node.output if name and name != entry.y)
        after = [] if last is None else [node_label(node) for node in (*inner, last) if node is not None]
        result.append(ActivationFate(entry.site, entry.call, tuple(map(node_label, entry.nodes)), tuple(after)))
    return result


REGION = "fp32: "  # in front of a recipe that is computed in float32 between two Casts
_16_BIT = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
TYPES: Mapping[str, str] = {
    "float16": "tensor(float16)",
    "bfloat16": "tensor(bfloat16)",
    "float32": "tensor(float)",
    "float64": "tensor(double)",
    "int8": "tensor(int8)",
    "int16": "tensor(int16)",
    "int32": "tensor(int32)",
    "int64": "tensor(int64)",
    "uint8": "tensor(uint8)",
    "bool": "tensor(bool)",
}
"""How onnxruntime calls the types that torch calls by these names."""


def output_faults(
    expected: Sequence[OutputSignature], there: Sequence[tuple[str, str]], metadata: FileMetadata
) -> list[str]:
    """Say which outputs have another name or type than the module gives them, and whether the labels fit."""
    if len(expected) != len(there):
        return []
    floating = {"fp16": "float16", "bf16": "bfloat16"}.get("" if metadata.io_dtype == "fp32" else metadata.dtype)
    faults = []
    for output, (name, type_name) in zip(expected, there, strict=True):
        if name != output.name:
            faults.append(f"output {output.name!r} of the module is called {name!r} in the file.")
        dtype = floating if floating is not None and output.dtype == "float32" else output.dtype
        if output.dtype in TYPES and type_name != TYPES[dtype]:
            faults.append(f"output {name!r} is {type_name} in the file, and should be {TYPES[dtype]}.")
    classes = expected[0].shape[-1] if expected and expected[0].shape else 0
    if metadata.labels and len(metadata.labels) != classes:
        faults.append(f"the file has {len(metadata.labels)} labels for {classes} values of {expected[0].name!r}.")
    return faults


def mismatches(model: nn.Module, metadata: FileMetadata, registry: ActivationRegistry) -> list[str]:
    """Say which sites of the module have another activation than the file records: the likeliest cause of a failure."""
    specs = {site.name: str(function_spec(site.spec)) for site in surgery.find_sites(model, registry=registry)}
    others: dict[tuple[str, str], list[str]] = {}
    for record in metadata.sites:
        recorded = str(function_spec(ActivationSpec.parse(record.spec)))
        if specs.get(record.site, recorded) != recorded:
            others.setdefault((specs[record.site], recorded), []).append(_name(record.site))
    return [f"{a} in the module is {b} in the file: {', '.join(names)}." for (a, b), names in others.items()]


def rewritten(model: onnx.ModelProto, metadata: FileMetadata) -> list[str]:
    """Say which activations were taken out of the file after the export."""
    # ``onnxruntime.transformers.optimizer`` does so, and makes the exact GELU of one in its tanh form.
    present = {site_of(node) for node in all_nodes(model.graph)}
    gone = [record for record in metadata.sites if record.row and record.calls and record.site not in present]
    if not gone:
        return []
    foreign = sorted({node_label(node) for node in all_nodes(model.graph) if node.domain and site_of(node) is None})
    return [
        "another program rewrote the file after the export: the nodes of "
        f"{', '.join(f'{_name(record.site)} ({record.spec})' for record in gone)} are gone"
        + (f", and {', '.join(foreign)} came in." if foreign else ".")
    ]


def _name(site: str) -> str:
    """Return a site's name; that of a module which is one activation is empty."""
    return site or "(the module itself)"


def activation_faults(
    model: onnx.ModelProto,
    module: nn.Module,
    metadata: FileMetadata,
    registry: ActivationRegistry,
    *,
    rewritable: bool,
) -> list[str]:
    """Say where module, record and graph do not agree on the activations."""
    # Every activation module must be recorded, as what it is; every node that is marked as an activation's must be one
    # of a recorded site; and these must be the recorded recipe with the activation's own arguments, which must be a
    # recipe of the lowering table. Arguments are compared to the last place, all else exactly. Where the file may have
    # been rewritten by a program that knows nothing of the record, all nodes of a site may be gone: the outputs decide.
    bound = {name: b for name, part in module.named_modules() if (b := bind(part, registry)) is not None}
    recorded = {record.site for record in metadata.sites}
    nodes: dict[str, list[onnx.NodeProto]] = {}  # those that are marked as an activation's, in the graph's order
    for node in all_nodes(model.graph):
        if (site := site_of(node)) is not None:
            nodes.setdefault(site, []).append(node)
    faults = [
        *(
            f"{_name(site)} is {activation.name} in the module, and the file records nothing for it."
            for site, activation in bound.items()
            if site not in recorded
        ),
        *(f"the file has nodes of {_name(site)}, and records nothing for it." for site in nodes.keys() - recorded),
    ]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for record in metadata.sites:
        activation, there = bound.get(record.site), nodes.get(record.site, [])
        if activation is not None and activation.row != record.row:
            faults.append(
                f"{_name(record.site)} is {activation.row} in the module, and {record.row or record.spec} is recorded."
            )
            continue
        if not record.row or (rewritable and record.site not in nodes):
            continue
        activation = activation or _of_spec(record, registry)
        arguments = {} if activation is None else activation.arguments
        fault = _unknown_recipe(record, activation, metadata) or recipe_fault(record, there, constants, arguments)
        if fault:
            faults.append(f"{_name(record.site)} ({record.spec}): {fault}.")
    return faults


def _of_spec(record: SiteRecord, registry: ActivationRegistry) -> BoundActivation | None:
    """Return the activation of a call of a function, from its recorded spec; ``None`` if that does not say."""
    try:
        activation = bind(registry.create(record.spec, trusted=False), registry)  # the file's text
    except LitGeluError:
        return None  # such as erfc, which is no activation
    return activation if activation is not None and activation.row == record.row else None


def _unknown_recipe(record: SiteRecord, activation: BoundActivation | None, metadata: FileMetadata) -> str:
    """Say that a recorded recipe is none of the activation's; another release may have had others."""
    foreign = activation is not None and not activation.in_table
    if not record.recipe or foreign or metadata.versions.get("lit-gelu") != versions()["lit-gelu"]:
        return ""
    row = TABLE.get(record.row)
    if row is None:
        return f"{record.row} is no row of the lowering table"
    recipes = {text.removeprefix("fp32 ") for text in (*recipe_texts(row), *row.policy.values())}
    plain = record.recipe.removeprefix(REGION)
    return "" if plain in recipes else f"{plain} is no recipe of {record.row}"


def recipe_fault(
    record: SiteRecord,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, onnx.TensorProto],
    arguments: Mapping[str, Argument | str] | None = None,
) -> str:
    """Say in what a site's nodes are not the recorded recipe: operators, their order, attributes or constants."""
    size = len(record.operators)
    if len(nodes) != size * record.calls:
        return f"{len(nodes)} nodes are there, {record.calls} calls of {size} are recorded"
    for call in (nodes[start : start + size] for start in range(0, len(nodes), max(size, 1))):
        if tuple(map(full_name, call)) != record.operators:
            return f"{', '.join(map(node_label, call))} is there, {', '.join(record.operators)} is recorded"
        if record.recipe and (difference := _difference(call, record.recipe, constants, arguments or {})):
            return difference
    return ""


def _difference(
    call: Sequence[onnx.NodeProto],
    recipe: str,
    constants: Mapping[str, onnx.TensorProto],
    arguments: Mapping[str, Argument | str],
) -> str:
    inner = list(call)
    if recipe.startswith(REGION):
        first, *inner, last = call
        into, back = ({a.i for a in node.attribute if a.name == "to"} for node in (first, last))
        if into != {onnx.TensorProto.FLOAT} or not back <= _16_BIT:
            return "the Casts about it are others than recorded"
    expected = _built(recipe.removeprefix(REGION), arguments)
    # What is read first where a recipe has its x: an activation may be of a parameter, a constant too.
    read = (
        str(there)
        for node, other in zip(inner, expected, strict=True)
        for there, value in zip(node.input, other.inputs, strict=False)
        if value is not None and value.name == "x"
    )
    names = {"x": next(read, "")}
    for node, other in zip(inner, expected, strict=True):
        text = _attribute_difference(node, other) or _input_difference(node, other, names, constants)
        if text:
            return f"{node_label(node)} {text}, where {recipe} is recorded"
        names[str(other.outputs[0].name)] = node.output[0]
    return ""


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
    there: dict[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    there = {name: value.decode() if isinstance(value, bytes) else value for name, value in there.items()}
    recorded = {name: attribute.value for name, attribute in expected.attributes.items()}
    schema = onnx.defs.get_schema(node.op_type) if "::" not in full_name(node) and onnx.defs.has(node.op_type) else None
    for name, attribute in {} if schema is None else schema.attributes.items():
        if attribute.default_value.type:  # what is left out is this
            value = onnx.helper.get_attribute_value(attribute.default_value)
            default = value.decode() if isinstance(value, bytes) else value
            there, recorded = {name: default, **there}, {name: default, **recorded}
    for name in sorted(there.keys() | recorded.keys()):
        a, b = there.get(name), recorded.get(name)
        both = isinstance(a, float) and isinstance(b, float)
        if not (_close(np.float32(a), np.float32(b)) if both else a == b):
            return f"has {name}={a!r} and should have {b!r}"
    return ""


def _input_difference(
    node: onnx.NodeProto, expected: ir.Node, names: Mapping[str, str], constants: Mapping[str, onnx.TensorProto]
) -> str:
    if len(node.input) != len(expected.inputs):
        return f"has {len(node.input)} inputs and should have {len(expected.inputs)}"
    for place, (name, value) in enumerate(zip(node.input, expected.inputs, strict=True)):
        if value is None or value.const_value is None:
            if name != ("" if value is None else names[str(value.name)]):
                return f"reads another value as input {place}"
            continue
        if name not in constants:
            return f"reads no constant as input {place}"
        there, recorded = numpy_helper.to_array(constants[name]).ravel(), value.const_value.numpy().ravel()
        if there.size != recorded.size and not np.isnan(recorded).all():
            return f"has {there.size} constants as input {place} and should have {recorded.size}"
        if not _close(there, recorded):
            return f"has the constant {there[:1]} as input {place} and should have {recorded[:1]}"
    return ""


def _close(there: Any, expected: Any) -> bool:
    """Return whether constants agree to the last place: those of learned parameters went through exp or softplus."""
    there = np.asarray(there)
    with np.errstate(over="ignore"):
        rounded = np.asarray(expected).astype(there.dtype).astype(np.float64)
    step = 2.0 * float(np.finfo(there.dtype).eps) if there.dtype.kind == "f" else 2.0**-7
    return bool(np.all(np.isnan(rounded) | np.isclose(there.astype(np.float64), rounded, rtol=step, atol=0)))
