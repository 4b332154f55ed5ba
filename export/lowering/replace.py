"""Replaces activations in an exported graph by the recipes of the lowering table."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience
from onnx_ir.passes import common as common_passes

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.onnx_recipes import LOWERINGS, OnnxRecipes
from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.lowering.bias_of_layers import hand_over_biases, keep_biases_apart
from lit_gelu.export.lowering.folding import fold
from lit_gelu.export.lowering.kernels import (
    DTYPES,
    Target,
    accepted_range,
    first_opset,
    off_target,
    raise_opset,
    solve,
    without_float64,
)
from lit_gelu.export.lowering.lowering_table import MARKER_DOMAIN, TABLE, BoundActivation
from lit_gelu.export.lowering.policy import Choice, choose, cuda_kernels, is_available, preferred
from lit_gelu.export.lowering.precision import convert
from lit_gelu.export.lowering.recipe import CONTRIB_DOMAIN, Argument, RecipeBuilder, infer_types, inlined, operators
from lit_gelu.export.lowering.spellings import mark_spellings, spec_text
from lit_gelu.export.lowering.written_out import write_out
from lit_gelu.export.metadata import SiteRecord
from lit_gelu.export.options import ExportOptions

CONTRIB_VERSION = 1
_FUNCTION = Choice("", "registered", in_fp32=True)  # an onnxscript function: its constants are float32


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
    # In this order: spellings are recognised and marked, scale factors folded, the graph converted to the file's dtype,
    # the opset solved, and each marker replaced by what the policy, or the lowering that was asked for, gives there.
    registry = activations.registry if registry is None else registry
    found = {**marked, **mark_spellings(model, registry)}
    if options.lowering != "auto":
        _require_applicable(found, options.lowering)
    target, before, strict = options.destination, dict(found), options.policy == "strict"
    foldable = options.lowering == "auto" and any(getattr(a.recipes, "scaled", None) for a in found.values())
    folded = fold(model, found, exact=strict) if foldable else {}
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
    distinct = {id(activation.recipes): activation for activation in found.values()}
    choices = [_wanted(activation, options) for activation in distinct.values()]
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
    by_recipes = {key: _choice(activation, options, opset) for key, activation in distinct.items()}
    taken = {site: by_recipes[id(activation.recipes)] for site, activation in found.items()}
    if options.lowering == "auto" and target.runtime == "ort-cuda":
        taken |= hand_over_biases(model, found, taken, target, nhwc=options.layout == "nhwc")
    if target.dtype == "fp16" and strict:
        keep_biases_apart(model, taken, target)
    calls = _replace_all(model, found, taken)
    rows = tuple(
        SiteRecord(
            site,
            (specs or {}).get(site) or spec_text(activation, registry),
            activation.row,
            taken[site].lowering,
            _operators(found[site], taken[site], target.dtype),
            calls[site],
            str(taken[site]) if taken[site].recipe else "",
            folded.get(site, ""),
        )
        for site, activation in before.items()
    )
    imports = model.graph.opset_imports
    imports.pop(MARKER_DOMAIN, None)
    if any(operator.startswith(CONTRIB_DOMAIN) for row in rows for operator in row.operators):
        imports[CONTRIB_DOMAIN] = CONTRIB_VERSION
    return Lowered(rows, opset, tuple(_notes(model, target, opset, rows)))


def _replace_all(
    model: ir.Model, activations: Mapping[str, BoundActivation], taken: Mapping[str, Choice]
) -> Counter[str]:
    """Replace the markers, and count them by site."""
    calls: Counter[str] = Counter()
    constants = _Constants(model.graph)
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
    """Return whether a value is the number 0.5."""
    number = None if value is None else convenience.get_const_tensor(value)
    return number is not None and number.size == 1 and number.numpy().item() == 0.5


def _operators(activation: BoundActivation, choice: Choice, dtype: str) -> tuple[str, ...]:
    """Return the operators of one call."""
    if not isinstance(activation.recipes, ir.Function):
        return choice.operators
    inner = tuple(f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in activation.recipes)
    return ("Cast", *inner, "Cast") if choice.in_fp32 and dtype != "fp32" else inner


def _wanted(activation: BoundActivation, options: ExportOptions) -> Choice:
    """Return what an activation should become, whatever the opset."""
    if isinstance(activation.recipes, ir.Function):
        return _FUNCTION
    if options.lowering != "auto":
        return _named(activation.recipes, options)
    try:
        return preferred(activation.recipes, options.destination)
    except LookupError as error:
        raise _nothing(activation.name, activation.recipes, options) from error


def _choice(activation: BoundActivation, options: ExportOptions, opset: int) -> Choice:
    """Return what an activation becomes at an opset."""
    if isinstance(activation.recipes, ir.Function):
        return _FUNCTION
    if options.lowering != "auto":
        named = _named(activation.recipes, options)
        if is_available(named, Target("ort-cpu", options.dtype), opset):  # it lacks nothing: only validity is asked for
            return named
    try:
        return choose(activation.recipes, options.destination, opset)
    except LookupError as error:
        raise _nothing(activation.name, activation.recipes, options) from error


def _nothing(name: str, recipes: OnnxRecipes, options: ExportOptions) -> ExportOptionError:
    """Return the error for an activation that the target cannot run."""
    at = "" if options.opset is None else f" at opset {options.opset}"
    remedy = "Use target='ort-cpu' or 'ort-cuda' if it was registered with operators of onnxruntime's own."
    newer = _newer_operators(recipes, options.target)
    if options.opset is not None and _fits_some_opset(recipes, options):
        remedy = "Leave opset out: one that fits is then taken."
    elif newer:
        opsets = accepted_range(options.target)
        remedy = f"{', '.join(newer)}; files have {opsets[0]} to {opsets[-1]}. Register it with older operators."
    elif options.target.startswith("ort-"):
        remedy = f"Register it with operators that take {options.dtype} (docs/lowering.md), or use another dtype."
    return ExportOptionError(
        f"there are no operators for {name} in {options.dtype} with target={options.target!r}{at}. {remedy}"
    )


def _fits_some_opset(recipes: OnnxRecipes, options: ExportOptions) -> bool:
    """Return whether a file without a given opset could hold an activation."""
    try:
        preferred(recipes, options.destination)
    except LookupError:
        return False
    return True


def _newer_operators(recipes: OnnxRecipes, runtime: str) -> list[str]:
    """Say which operators of an activation came with a later opset than the target's files may have."""
    newest = accepted_range(runtime)[-1]
    names = dict.fromkeys(name for text in recipes.texts for name in operators(text))
    first = {name: first_opset(name) for name in names}
    return [f"{name} is of opset {since}" for name, since in first.items() if since is not None and since > newest]


def _named(recipes: OnnxRecipes, options: ExportOptions) -> Choice:
    """Return the recipe of the lowering that was asked for by name."""
    name, recipe = recipes.recipe(options.lowering)  # type: ignore[arg-type]
    return Choice(recipe, name)


def _require_applicable(found: Mapping[str, BoundActivation], lowering: str) -> None:
    """Refuse a lowering that has a recipe for none of the activations."""
    rows = {a.row: a.recipes for a in found.values() if isinstance(a.recipes, OnnxRecipes)}
    if lowering == "native" or any(row.applies(lowering) for row in rows.values()):  # type: ignore[arg-type]
        return
    applying = [name for name in LOWERINGS if any(row.applies(name) for row in rows.values())]
    names = ", ".join(sorted(rows)) or "none that the lowering table knows"
    raise ExportOptionError(
        f"lowering={lowering!r} does not apply: it has no recipe for any activation of this model ({names}). Lowerings "
        f"that apply: {', '.join(map(repr, applying or ['native']))}, or 'auto'."
    )


def _notes(model: ir.Model, target: Target, opset: int, rows: tuple[SiteRecord, ...]) -> list[str]:
    """Say what a user of the file should know."""
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    notes = off_target(nodes, target.runtime, opset)
    doubles = without_float64(nodes) if target.runtime in {"portable", "ort-cpu"} else []
    if doubles:
        notes.append(
            f"onnxruntime's CPU provider has no float64 kernels of {', '.join(doubles)} and does not load this file: "
            "let forward compute them in float32 (x.float())."
        )
    if target.dtype == "bf16" and target.runtime in {"portable", "ort-cpu"}:
        notes.append("onnxruntime's CPU provider has no bfloat16 kernels: this file runs on a GPU only.")
    folded = [f"{row.site}: {row.folded}" for row in rows if row.folded]
    costs = [_cost(target, row) for row in rows if target.runtime == "ort-cuda" and row.calls]
    return [*notes, *folded, *filter(None, dict.fromkeys(costs))]


def _cost(target: Target, row: SiteRecord) -> str:
    """Say that an activation is several kernels of the CUDA provider, and what would be fewer."""
    recipes, count = TABLE.get(row.row), cuda_kernels(row.operators, target.dtype)
    if recipes is None or count == 1:
        return ""
    fast = cuda_kernels(preferred(recipes, replace(target, policy="fast")).operators, target.dtype)
    fewer = [f"policy='fast' is {fast}", recipes.notes.get("ort-cuda fast", "")] if fast < count else []
    texts = [f"{row.row} is {count} kernels on CUDA", *fewer, recipes.notes.get("ort-cuda strict", "")]
    return f"{'; '.join(filter(None, texts))}."


@dataclass
class _Constants:
    """Initializers for constants; equal ones are shared."""

    graph: ir.Graph
    known: dict[tuple[bytes, str, tuple[int, ...]], ir.Value] = field(default_factory=dict)

    def of_dtype(self, dtype: ir.DataType) -> Callable[[np.ndarray, str], ir.Value]:
        """Return a function that makes initializers of a dtype."""

        def constant(array: np.ndarray, hint: str) -> ir.Value:
            array = array.astype(np.float32).astype(dtype.numpy())
            key = (array.tobytes(), str(array.dtype), array.shape)
            if key not in self.known:
                name = f"lit_gelu.{hint}_{len(self.known)}"
                value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
                value.dtype, value.shape = dtype, ir.Shape(array.shape)
                self.graph.initializers[name] = value
                self.known[key] = value
            return self.known[key]

        return constant


def _replace(node: ir.Node, site: str, activation: BoundActivation, choice: Choice, constants: _Constants) -> None:
    """Put a recipe's nodes in the place of a marker."""
    x = node.inputs[0]
    if x is None or node.graph is None:
        raise ValueError(f"{site} has no input")
    channel_dim = int(activation.arguments.get("channel_dim", 1))
    arguments = {key: _shaped(value, x, channel_dim) for key, value in activation.arguments.items()}
    if len(node.inputs) > 1:
        arguments["bias"] = node.inputs[1]  # type: ignore[assignment]
    dtype = x.dtype or ir.DataType.FLOAT
    opset = constants.graph.opset_imports[""]
    new, result = recipe_nodes(x, activation, choice, arguments, dtype, constants.of_dtype, opset)
    for made in new:
        made.metadata_props["lit_gelu.site"] = site
    convenience.replace_nodes_and_values(node.graph, node, [node], new, [node.outputs[0]], [result])


def recipe_nodes(
    x: ir.Value,
    activation: BoundActivation,
    choice: Choice,
    arguments: Mapping[str, Argument],
    dtype: ir.DataType,
    constants: Callable[[ir.DataType], Callable[[np.ndarray, str], ir.Value]],
    opset: int,
) -> tuple[list[ir.Node], ir.Value]:
    """Build what an activation becomes: nodes in order, and the value of the last."""
    # arguments broadcast against the input; constants makes, for a dtype, an initializer from an array and a hint.
    region = choice.in_fp32 and dtype in {DTYPES["fp16"], DTYPES["bf16"]}
    inner = ir.DataType.FLOAT if region else dtype
    nodes = [ir.node("Cast", [x], attributes={"to": int(inner)})] if region else []
    start = nodes[0].outputs[0] if region else x
    if isinstance(activation.recipes, ir.Function):
        built, result = inlined(activation.recipes, start, arguments)
    else:
        builder = RecipeBuilder(start, arguments, constants(inner))
        result = builder.build(choice.recipe)
        built = builder.nodes
    nodes += built
    infer_types(nodes, inner, x.shape, opset)
    # An activation is elementwise; its inner values may not be.
    result.dtype, result.shape = result.dtype or inner, x.shape
    if region:
        nodes.append(ir.node("Cast", [result], attributes={"to": int(dtype)}))
        result = nodes[-1].outputs[0]
        result.dtype, result.shape = dtype, x.shape
    return nodes, result


def _shaped(value: Argument | str, x: ir.Value, channel_dim: int) -> Argument:
    """Give a vector with one entry a channel the shape that broadcasts along the channels' dimension of ``x``."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.size > 1 and x.shape is not None:
        after = -channel_dim - 1 if channel_dim < 0 else len(x.shape) - 1 - channel_dim
        return value.reshape(-1, *[1] * after)
    return value  # type: ignore[return-value]
