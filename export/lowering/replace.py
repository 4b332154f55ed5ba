"""Replaces activations in an exported graph by the recipes of the lowering table."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience
from onnx_ir.passes import common as common_passes

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.onnx_recipes import LOWERINGS, OnnxRecipes
from lit_gelu.errors import ArgumentError
from lit_gelu.export.lowering.layers import hand_over_biases, keep_biases_apart
from lit_gelu.export.lowering.lowering_table import (
    CONTRIB_DOMAIN,
    MARKER_DOMAIN,
    Argument,
    BoundActivation,
    Constants,
    RecipeBuilder,
    has_recipe,
    infer_types,
    recipe_of,
)
from lit_gelu.export.lowering.policy import (
    DTYPES,
    Choice,
    Target,
    choose,
    is_available,
    off_target,
    preferred,
    raise_opset,
    solve,
)
from lit_gelu.export.lowering.precision import convert
from lit_gelu.export.lowering.spellings import mark_spellings, spec_text
from lit_gelu.export.lowering.written_out import write_out
from lit_gelu.export.metadata import ExportOptions, SiteRecord

CONTRIB_VERSION = 1


@dataclass(frozen=True)
class Lowered:
    """A lowered graph: a record of each site (marked ones first), the opset, and notes for users."""

    sites: tuple[SiteRecord, ...]
    opset: int
    notes: tuple[str, ...] = ()


def lower(
    model: ir.Model,
    marked: Mapping[str, BoundActivation],
    options: ExportOptions,
    registry: ActivationRegistry | None = None,
    specs: Mapping[str, str] | None = None,
) -> Lowered:
    """Replace every marker, and every activation that was called as a function or written by hand, by its recipe."""
    # In this order: spellings are recognised and marked, the graph converted to the file's dtype,
    # the opset solved, and each marker replaced by what the policy, or the lowering that was asked for, gives there.
    registry = activations.registry if registry is None else registry
    sites = {**marked, **mark_spellings(model, registry)}
    if options.lowering != "auto":
        _require_applicable(sites, options.lowering)
    target, strict = options.destination, options.policy == "strict"
    if target.dtype != "fp32":
        convert(
            model,
            target.dtype,
            options.keep_fp32,
            strict=strict,
            io_fp32=options.io_dtype == "fp32",
            runtime=target.runtime,
        )
    traced = model.graph.opset_imports[""]
    recipes = {id(activation.recipes): activation for activation in sites.values()}
    choices = [_first_choice(activation, options) for activation in recipes.values()]
    opset = solve(
        model.graph,
        target,
        lambda version: all(is_available(choice, target, version) for choice in choices),
        opset=options.opset,
        traced=traced,
    )
    if opset != traced:
        raise_opset(model, opset)
    if target.runtime == "ort-cuda" or target.dtype == "bf16":  # onnxruntime's CPU has these kernels
        write_out(model, target.runtime, opset)
    by_recipes = {key: _choice(activation, options, opset) for key, activation in recipes.items()}
    taken = {site: by_recipes[id(activation.recipes)] for site, activation in sites.items()}
    if options.lowering == "auto" and target.runtime == "ort-cuda":
        taken |= hand_over_biases(model, sites, taken, target)
    if target.dtype == "fp16" and strict:
        keep_biases_apart(model, taken, target)
    calls = _replace_all(model, sites, taken)
    rows = tuple(
        SiteRecord(
            site,
            (specs or {}).get(site) or spec_text(activation, registry),
            activation.row,
            taken[site].lowering,
            taken[site].operators,
            calls[site],
            str(taken[site]),
        )
        for site, activation in sites.items()
    )
    imports = model.graph.opset_imports
    imports.pop(MARKER_DOMAIN, None)
    if any(operator.startswith(CONTRIB_DOMAIN) for row in rows for operator in row.operators):
        imports[CONTRIB_DOMAIN] = CONTRIB_VERSION
    notes = off_target(list(ir.traversal.RecursiveGraphIterator(model.graph)), target.runtime, opset)
    if target.dtype == "bf16" and target.runtime in {"portable", "ort-cpu"}:
        notes.append("onnxruntime's CPU provider has no bfloat16 kernels: this file runs on a GPU only.")
    return Lowered(rows, opset, tuple(notes))


def _replace_all(
    model: ir.Model, activations: Mapping[str, BoundActivation], taken: Mapping[str, Choice]
) -> Counter[str]:
    calls: Counter[str] = Counter()
    constants = Constants(model.graph)
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.domain == MARKER_DOMAIN:
            site = node.attributes["site"].as_string()
            calls[site] += 1
            _replace(node, site, activations[site], taken[site], constants)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type == "Mul" and _is_half(node.inputs[0]) and not _is_of_tanh_gelu(node):
            first, second = node.inputs
            node.replace_input_with(0, second)
            node.replace_input_with(1, first)
    common_passes.RemoveUnusedNodesPass()(model)
    common_passes.NameFixPass()(model)  # new nodes in the branches of an If are numbered as those around it are
    return calls


def _is_of_tanh_gelu(half: ir.Node) -> bool:
    """Return whether a product is that of GELU's tanh primitives, which have the number in front to themselves."""
    for reader in half.outputs[0].consumers():
        added = [value.producer() for value in reader.inputs if value is not None and value is not half.outputs[0]]
        for node in added if reader.op_type == "Mul" else ():
            summed = [value.producer() for value in node.inputs if value is not None] if node is not None else []
            if any(one is not None and one.op_type == "Tanh" for one in summed):
                return True
    return False


def _is_half(value: ir.Value | None) -> bool:
    number = None if value is None else convenience.get_const_tensor(value)
    return number is not None and number.size == 1 and number.numpy().item() == 0.5


def _first_choice(activation: BoundActivation, options: ExportOptions) -> Choice:
    """Return what an activation should become, whatever the opset."""
    if options.lowering != "auto":
        return _named(activation.recipes, options)
    try:
        return preferred(activation.recipes, options.destination)
    except LookupError as error:
        raise _nothing(activation.name, options) from error


def _choice(activation: BoundActivation, options: ExportOptions, opset: int) -> Choice:
    if options.lowering != "auto":
        named = _named(activation.recipes, options)
        if is_available(named, Target("ort-cpu", options.dtype), opset):  # it lacks nothing: only validity is asked for
            return named
    try:
        return choose(activation.recipes, options.destination, opset)
    except LookupError as error:
        raise _nothing(activation.name, options) from error


def _nothing(name: str, options: ExportOptions) -> ArgumentError:
    at = "" if options.opset is None else f" at opset {options.opset}"
    return ArgumentError(
        f"there are no operators for {name} in {options.dtype} with target={options.target!r}{at}. Leave opset out, "
        "register it with operators that this target has in this dtype (docs/lowering.md), or use another target or "
        "dtype."
    )


def _named(recipes: OnnxRecipes, options: ExportOptions) -> Choice:
    name, recipe = recipe_of(recipes, options.lowering)  # type: ignore[arg-type]
    return Choice(recipe, name)


def _require_applicable(sites: Mapping[str, BoundActivation], lowering: str) -> None:
    """Refuse a lowering that has a recipe for none of the activations."""
    rows = {a.row: a.recipes for a in sites.values()}
    if lowering == "native" or any(has_recipe(row, lowering) for row in rows.values()):  # type: ignore[arg-type]
        return
    applying = [name for name in LOWERINGS if any(has_recipe(row, name) for row in rows.values())]
    names = ", ".join(sorted(rows)) or "none that the lowering table knows"
    raise ArgumentError(
        f"lowering={lowering!r} does not apply: it has no recipe for any activation of this model ({names}). Lowerings "
        f"that apply: {', '.join(map(repr, applying or ['native']))}, or 'auto'."
    )


def _replace(node: ir.Node, site: str, activation: BoundActivation, choice: Choice, constants: Constants) -> None:
    x = node.inputs[0]
    if x is None or node.graph is None:
        raise ValueError(f"{site} has no input")
    channel_dim = int(activation.arguments.get("channel_dim", 1))
    arguments = {key: _shaped(value, x, channel_dim) for key, value in activation.arguments.items()}
    if len(node.inputs) > 1:
        arguments["bias"] = node.inputs[1]  # type: ignore[assignment]
    dtype = x.dtype or ir.DataType.FLOAT
    region = choice.in_fp32 and dtype in {DTYPES["fp16"], DTYPES["bf16"]}
    inner = ir.DataType.FLOAT if region else dtype
    nodes = [ir.node("Cast", [x], attributes={"to": int(inner)})] if region else []
    builder = RecipeBuilder(nodes[0].outputs[0] if region else x, arguments, constants.floats(inner))
    result = builder.build(choice.recipe)
    nodes += builder.nodes
    infer_types(nodes, inner, x.shape, constants.graph.opset_imports[""])
    # An activation is elementwise; its inner values may not be.
    result.dtype, result.shape = result.dtype or inner, x.shape
    if region:
        nodes.append(ir.node("Cast", [result], attributes={"to": int(dtype)}))
        result = nodes[-1].outputs[0]
        result.dtype, result.shape = dtype, x.shape
    for new in nodes:
        new.metadata_props["lit_gelu.site"] = site
    convenience.replace_nodes_and_values(node.graph, node, [node], nodes, [node.outputs[0]], [result])


def _shaped(value: Argument | str, x: ir.Value, channel_dim: int) -> Argument:
    """Give a vector with one entry a channel the shape that broadcasts along the channels' dimension of ``x``."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.size > 1 and x.shape is not None:
        after = -channel_dim - 1 if channel_dim < 0 else len(x.shape) - 1 - channel_dim
        return value.reshape(-1, *[1] * after)
    return value  # type: ignore[return-value]
