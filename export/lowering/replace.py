"""Replaces activations in an exported graph by the recipes of the lowering table, and what CUDA has no kernel for."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience
from onnx_ir.passes import common as common_passes
from onnx_ir.tape import Tape

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import ArgumentError
from lit_gelu.export.lowering.lowering_table import (
    CONTRIB_DOMAIN,
    MARKER_DOMAIN,
    Argument,
    BoundActivation,
    Constants,
    RecipeBuilder,
    recipe_of,
)
from lit_gelu.export.lowering.policy import DTYPES, Choice, Target, choose, has_kernel, is_available, off_target, solve
from lit_gelu.export.lowering.precision import convert
from lit_gelu.export.lowering.spellings import mark_spellings, spec_text
from lit_gelu.export.metadata import ExportOptions, SiteRecord


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
    target = Target(options.target, options.dtype, options.policy)
    if target.dtype != "fp32":
        convert(
            model,
            target.dtype,
            options.keep_fp32,
            strict=options.policy == "strict",
            io_fp32=options.io_dtype == "fp32",
            runtime=target.runtime,
        )
    recipes = {id(activation.recipes): activation for activation in sites.values()}
    choices = [_choice(activation, options) for activation in recipes.values()]
    opset = solve(
        model.graph,
        target,
        lambda version: all(is_available(choice, target, version) for choice in choices),
        opset=options.opset,
        traced=model.graph.opset_imports[""],
    )
    # Between the opsets that this package writes, operators gained dtypes and keep their meaning.
    imports = model.graph.opset_imports
    for each in (imports, *(function.opset_imports for function in model.functions.values())):
        each[""] = opset
    # A portable file of 32 or 16 bits may run on the CPU, which has the kernel; one in bfloat16 may not.
    for_cuda = target.runtime == "ort-cuda" or (target.runtime == "portable" and target.dtype == "bf16")
    if for_cuda and not has_kernel("ort-cuda", "MaxPool", "fp32", opset):
        _write_out_max_pools(model)
    by_recipes = {key: _choice(activation, options, opset) for key, activation in recipes.items()}
    taken = {site: by_recipes[id(activation.recipes)] for site, activation in sites.items()}
    if (target.dtype, target.policy) == ("fp16", "strict") and target.runtime in {"ort-cuda", "portable"}:
        _keep_biases_apart(model, taken)
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
    imports.pop(MARKER_DOMAIN, None)
    if any(operator.startswith(CONTRIB_DOMAIN) for row in rows for operator in row.operators):
        imports[CONTRIB_DOMAIN] = 1
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
    common_passes.RemoveUnusedNodesPass()(model)
    common_passes.NameFixPass()(model)  # new nodes in the branches of an If are numbered as those around it are
    return calls


def _choice(activation: BoundActivation, options: ExportOptions, opset: int | None = None) -> Choice:
    """Return what an activation becomes at an opset; without one, what it should become whatever the opset."""
    recipes, target = activation.recipes, Target(options.target, options.dtype, options.policy)
    if options.lowering != "auto":
        name, recipe = recipe_of(recipes, options.lowering)  # type: ignore[arg-type]
        choice = Choice(recipe, name)
        # The CPU lacks no kernel: only validity is asked for.
        if opset is None or is_available(choice, Target("ort-cpu", options.dtype), opset):
            return choice
    try:
        return choose(recipes, target, opset)
    except LookupError as error:
        at = "" if options.opset is None else f" at opset {options.opset}"
        raise ArgumentError(
            f"there are no operators for {activation.name} in {options.dtype} with target={options.target!r}{at}. "
            "Leave opset out, register it with other operators (docs/lowering.md), or use another target or dtype."
        ) from error


def _replace(node: ir.Node, site: str, activation: BoundActivation, choice: Choice, constants: Constants) -> None:
    x = node.inputs[0]
    if x is None or node.graph is None:
        raise ValueError(f"{site} has no input")
    channel_dim = int(activation.arguments.get("channel_dim", 1))
    arguments = {key: _shaped(value, x, channel_dim) for key, value in activation.arguments.items()}
    dtype = x.dtype or ir.DataType.FLOAT
    region = choice.in_fp32 and dtype in {DTYPES["fp16"], DTYPES["bf16"]}
    inner = ir.DataType.FLOAT if region else dtype
    nodes = [ir.node("Cast", [x], attributes={"to": int(inner)})] if region else []
    builder = RecipeBuilder(nodes[0].outputs[0] if region else x, arguments, constants.floats(inner))
    result = builder.build(choice.recipe)
    nodes += builder.nodes
    result.dtype, result.shape = inner, x.shape
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


def _keep_biases_apart(model: ir.Model, taken: Mapping[str, Choice]) -> None:
    """Write a bias in front of a Gelu as one row: onnxruntime's BiasGeluFusion takes one of one dimension."""
    # In float16 its BiasGelu rounds erf before it adds 1, which cancels: at -3.67 it is off by all of the value.
    constants = Constants(model.graph)
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        x = node.inputs[0] if node.domain == MARKER_DOMAIN else None
        choice = None if x is None else taken[node.attributes["site"].as_string()]
        layer = None if x is None else x.producer()
        if choice is None or choice.in_fp32 or "Gelu(" not in choice.recipe or layer is None or layer.op_type != "Add":
            continue
        for i, bias in enumerate(layer.inputs):
            other = layer.inputs[1 - i]
            if bias is None or other is None or bias.const_value is None or bias.producer() is not None:
                continue
            if bias.shape is not None and other.shape is not None and len(bias.shape) == 1 < len(other.shape):
                layer.replace_input_with(i, constants.value(bias.const_value.numpy()[None], "row"))


_OPEN = np.iinfo(np.int64).max  # the end of a Slice that goes to the end


def _write_out_max_pools(model: ir.Model) -> None:
    """Write MaxPool as Slice and Max, dimension by dimension, where that is the same."""
    # One strided Slice for each place in a window, and the Max of them, rounds nothing and has kernels in every dtype.
    constants = Constants(model.graph)
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        windows = _windows(node) if node.op_type == "MaxPool" and node.domain in {"", "ai.onnx"} else None
        x = node.inputs[0]
        if windows is None or x is None or node.graph is None:
            continue
        tape, y = Tape(), x
        for axis, (size, stride, dilation, before, behind) in enumerate(windows, 2):
            # A window that reaches over an edge holds the value at the edge too: repeated, it changes nothing. (With
            # gaps it may not hold it. Pad has no kernel in bfloat16.)
            if before or behind:
                bounds = [*[(0, 1)] * before, (0, _OPEN), *[(-1, _OPEN)] * behind]
                slices = [[y, *map(constants.integers, (start, end, axis))] for start, end in bounds]
                y = tape.op("Concat", [tape.op("Slice", operands) for operands in slices], {"axis": axis})
            reach = dilation * (size - 1)
            places = [(i, i - reach or _OPEN, axis, stride) for i in range(0, reach + 1, dilation)]
            parts = [tape.op("Slice", [y, *map(constants.integers, place)]) for place in places]
            y = parts[0] if len(parts) == 1 else tape.op("Max", parts)
        for new in tape.nodes:
            new.outputs[0].dtype = x.dtype or ir.DataType.FLOAT
        y.shape = node.outputs[0].shape
        convenience.replace_nodes_and_values(node.graph, node, [node], tape.nodes, [node.outputs[0]], [y])


def _windows(node: ir.Node) -> list[tuple[int, int, int, int, int]] | None:
    """Return size, stride, dilation and padding before and behind of each dimension; ``None`` for what is not known."""
    kernel = list(node.attributes["kernel_shape"].as_ints())
    ones, zeros = [1] * len(kernel), [0] * 2 * len(kernel)
    strides, dilations, pads = (
        list(node.attributes[name].as_ints()) if name in node.attributes else default
        for name, default in (("strides", ones), ("dilations", ones), ("pads", zeros))
    )
    automatic = node.attributes.get("auto_pad")
    if len(node.outputs) > 1 or (automatic is not None and automatic.as_string() != "NOTSET"):
        return None
    ceil = "ceil_mode" in node.attributes and node.attributes["ceil_mode"].as_int() == 1
    windows = []
    for i, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        before, behind = pads[i], pads[len(kernel) + i]
        if ceil:  # rounded up: as if there were so many more, unless a window would begin behind the last value
            if behind + stride > size:
                return None
            behind += stride - 1
        if max(before, behind) >= size or (before + behind and dilation > 1):
            return None
        windows.append((size, stride, dilation, before, behind))
    return windows
