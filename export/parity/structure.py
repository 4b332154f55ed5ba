"""Do module, record and graph agree on the activations? What decides beside any number."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from torch import nn

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.naming.forms import function_spec
from lit_gelu.errors import LitGeluError
from lit_gelu.export.lowering.lowering_table import TABLE, BoundActivation, bind
from lit_gelu.export.lowering.recipe import Argument, RecipeBuilder, names_in
from lit_gelu.export.metadata import FileMetadata, SiteRecord, versions
from lit_gelu.export.parity.references import OutputSignature
from lit_gelu.export.parity.subgraph import all_nodes, node_label, site_of


def activation_faults(
    model: onnx.ModelProto,
    module: nn.Module,
    metadata: FileMetadata,
    registry: ActivationRegistry,
    *,
    rewritable: bool,
    replaced: frozenset[str] = frozenset(),
) -> list[str]:
    """Say where module, record and graph do not agree on the activations."""
    # Every activation module must be recorded, as what it is; every node that is marked as an activation's must be one
    # of a recorded site; and these must be the recorded recipe with the activation's own arguments, which must be a
    # recipe of the lowering table. Arguments are compared to the last place, all else exactly. Where the file may have
    # been rewritten by a program that knows nothing of the record, all nodes of a site may be gone: the outputs decide.
    # So they do where an operator is one of those that something else in the file has `replaced`, call by call.
    bound = {name: b for name, part in module.named_modules() if (b := bind(part, registry)) is not None}
    records = {record.site: record for record in metadata.sites}
    faults = [
        f"{_called(site)} is {activation.name} in the module, and the file records nothing for it."
        for site, activation in bound.items()
        if site not in records
    ]
    nodes = nodes_by_site(model)
    faults += [f"the file has nodes of {_called(site)}, and records nothing for it." for site in nodes.keys() - records]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for record in metadata.sites:
        own = bound.get(record.site)
        if own is not None and own.row != record.row:
            faults.append(
                f"{_called(record.site)} is {own.row} in the module, and {record.row or record.spec} is recorded."
            )
            continue
        if not record.row or (rewritable and record.site not in nodes):
            continue
        activation = _of_spec(record, registry) if own is None else own
        there = nodes.get(record.site, [])
        text = _unknown_recipe(record, activation, metadata) or recipe_fault(
            _left(record, there, replaced), there, constants, _arguments(record, activation)
        )
        if text:
            faults.append(f"{_called(record.site)} ({record.spec}): {text}.")
    return faults


def _left(record: SiteRecord, nodes: Sequence[onnx.NodeProto], replaced: frozenset[str]) -> SiteRecord:
    """Return a record with the calls that are left, where its one operator may have been replaced."""
    may_be_gone = len(record.operators) == 1 and replaced.issuperset(record.operators)
    return replace(record, calls=min(record.calls, len(nodes))) if may_be_gone else record


def _called(site: str) -> str:
    """Return a site's name; that of a module which is one activation is empty."""
    return site or "(the module itself)"


def _of_spec(record: SiteRecord, registry: ActivationRegistry) -> BoundActivation | None:
    """Return the activation of a call of a function, from its recorded spec; ``None`` if that does not say."""
    try:
        activation = bind(registry.stored.create(record.spec), registry)  # the file's text: looked up, never imported
    except LitGeluError:
        return None  # such as erfc, which is no activation
    return activation if activation is not None and activation.row == record.row else None


def _arguments(record: SiteRecord, activation: BoundActivation | None) -> Mapping[str, Argument | str]:
    """Return the arguments that the recipe is built with; of a folded site they are in other weights."""
    return {} if activation is None or record.folded else activation.arguments


def _unknown_recipe(record: SiteRecord, activation: BoundActivation | None, metadata: FileMetadata) -> str:
    """Say that a recorded recipe is none of the activation's; another release may have had others."""
    release = versions()["lit-gelu"]
    foreign = activation is not None and not activation.in_table
    row = TABLE.get(record.row)
    if not record.recipe or record.folded or foreign or metadata.versions.get("lit-gelu") != release:
        return ""
    if row is None:
        return f"{record.row} is no row of the lowering table"
    known = {text.removeprefix("fp32 ") for text in (*row.texts, *row.policy.values())}
    plain = record.recipe.removeprefix(REGION)
    return "" if plain in known else f"{plain} is no recipe of {record.row}"


REGION = "fp32: "  # in front of a recipe that is computed in float32 between two Casts
_16_BIT = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})


def nodes_by_site(model: onnx.ModelProto) -> dict[str, list[onnx.NodeProto]]:
    """Return the nodes of every activation, in the graph's order, those of subgraphs after them."""
    found: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in all_nodes(model.graph):
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
    """Say in what a site's nodes are not the recorded recipe: operators, their order, attributes or constants."""
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
    names = {"x": _read_as_x(inner, wanted)}
    for node, expected in zip(inner, wanted, strict=True):
        text = _attribute_difference(node, expected) or _input_difference(node, expected, names, constants)
        if text:
            return f"{node_label(node)} {text}, where {recipe} is recorded"
        names[_name(expected.outputs[0])] = node.output[0]
    return ""


def _read_as_x(inner: Sequence[onnx.NodeProto], wanted: Sequence[ir.Node]) -> str:
    """Return what is read first where a recipe has its x: an activation may be of a parameter, a constant too."""
    for node, expected in zip(inner, wanted, strict=True):
        for given, value in zip(node.input, expected.inputs, strict=False):
            if _name(value) == "x":
                return str(given)
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
    wanted: Sequence[OutputSignature], there: Sequence[tuple[str, str]], metadata: FileMetadata
) -> list[str]:
    """Say which outputs have another name or type than the module gives them, and whether the labels fit."""
    if len(wanted) != len(there):
        return []
    floating = {"fp16": "float16", "bf16": "bfloat16"}.get("" if metadata.io_dtype == "fp32" else metadata.dtype)
    faults = []
    for output, (name, type_name) in zip(wanted, there, strict=True):
        if name != output.name:
            faults.append(f"output {output.name!r} of the module is called {name!r} in the file.")
        dtype = floating if floating is not None and output.dtype == "float32" else output.dtype
        if output.dtype in TYPES and type_name != TYPES[dtype]:
            faults.append(f"output {name!r} is {type_name} in the file, and should be {TYPES[dtype]}.")
    classes = wanted[0].shape[-1] if wanted and wanted[0].shape else 0
    if metadata.labels and len(metadata.labels) != classes:
        faults.append(f"the file has {len(metadata.labels)} labels for {classes} values of {wanted[0].name!r}.")
    return faults


def mismatches(model: nn.Module, metadata: FileMetadata, registry: ActivationRegistry) -> list[str]:
    """Say which sites of the module have another activation than the file records: the likeliest cause of a failure."""
    sites = {site.name: str(function_spec(site.spec)) for site in surgery.find_sites(model, registry=registry)}
    found: dict[tuple[str, str], list[str]] = {}
    for record in metadata.sites:
        spec = sites.get(record.site)
        recorded = str(function_spec(ActivationSpec.parse(record.spec)))
        if spec is not None and spec != recorded:
            found.setdefault((spec, recorded), []).append(record.site or "(the module itself)")
    return [
        f"{spec} in the module is {recorded} in the file: {', '.join(names)}."
        for (spec, recorded), names in found.items()
    ]


def rewritten(model: onnx.ModelProto, metadata: FileMetadata) -> list[str]:
    """Say which activations were taken out of the file after the export."""
    # ``onnxruntime.transformers.optimizer`` does so, and makes the exact GELU of one in its tanh form.
    present = {site_of(node) for node in all_nodes(model.graph)}
    gone = [record for record in metadata.sites if record.row and record.calls and record.site not in present]
    if not gone:
        return []
    sites = ", ".join(f"{record.site or '(the module itself)'} ({record.spec})" for record in gone)
    foreign = sorted({node_label(node) for node in all_nodes(model.graph) if node.domain and site_of(node) is None})
    return [
        f"another program rewrote the file after the export: the nodes of {sites} are gone"
        + (f", and {', '.join(foreign)} came in." if foreign else ".")
    ]
