"""A file's activations: are their nodes those of the record and of the module, and what do they compute alone?"""

import copy
import itertools
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data
from torch import Tensor, nn

from lit_gelu.activations import ActivationArgumentError, ActivationRegistry
from lit_gelu.activations.functional import derivative
from lit_gelu.errors import LitGeluError, ModelFileError
from lit_gelu.export.inputs import as_array
from lit_gelu.export.lowering.lowering_table import (
    TABLE,
    Argument,
    BoundActivation,
    RecipeBuilder,
    bind,
    names_in,
    operators,
    recipe_texts,
)
from lit_gelu.export.lowering.policy import Choice, absolute_error, ulp_bound
from lit_gelu.export.metadata import FileMetadata, SiteRecord, versions
from lit_gelu.export.parity.criterion import FACTOR, FLOOR, distance, limit, overflowed, spacing
from lit_gelu.export.parity.report import ELEMENTWISE, ParityRow
from lit_gelu.export.parity.runs import SessionSetup, run_file
from lit_gelu.export.runtime.model_file import load_tensor, nodes_of, operator_name, read_model_file
from lit_gelu.export.site_nodes import SiteNodes, cut_out, element_type, node_label, site_of, sites_in_subgraphs


def load_structure(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return a file's graph; of weights that are kept beside it, only those of activations."""
    model = onnx.load(path, load_external_data=False)
    read = {name for node in nodes_of(model.graph) if site_of(node) is not None for name in node.input}
    for tensor in model.graph.initializer:
        if tensor.name in read and uses_external_data(tensor):
            load_tensor(tensor, read_model_file(path).path.parent)
    return model


REGION = "fp32: "  # in front of a recipe that is computed in float32 between two Casts
_16_BIT = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}


def _name(site: str) -> str:
    return site or "(the module itself)"


def activation_faults(
    model: onnx.ModelProto, module: nn.Module, metadata: FileMetadata, registry: ActivationRegistry, *, rewritable: bool
) -> list[str]:
    """Say where module, record and graph do not agree on the activations."""
    # Every activation module must be recorded, as what it is; every node that is marked as an activation's must be of a
    # recorded site; and these must be the recorded recipe, one of the lowering table, with the activation's arguments.
    # Where another program may have rewritten the file, all nodes of a site may be gone: the outputs decide.
    bound = {name: b for name, part in module.named_modules() if (b := bind(part, registry)) is not None}
    recorded = {record.site for record in metadata.sites}
    nodes: dict[str, list[onnx.NodeProto]] = {}  # those that are marked as an activation's, in the graph's order
    for node in nodes_of(model.graph):
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
        if activation is None:
            _, activation = _stored_activation(record, registry) or (None, None)
        arguments = {} if activation is None else activation.arguments
        fault = _unknown_recipe(record, activation, metadata) or recipe_fault(record, there, constants, arguments)
        if fault:
            faults.append(f"{_name(record.site)} ({record.spec}): {fault}.")
    return faults


def _stored_activation(record: SiteRecord, registry: ActivationRegistry) -> tuple[nn.Module, BoundActivation] | None:
    """Return the activation of a call of a function, from its recorded spec; ``None`` if that is of another row."""
    try:
        module = registry.create(record.spec, trusted=False)  # the file's text: looked up, never imported
    except LitGeluError:  # such as erfc, which is no activation
        return None
    bound = bind(module, registry)
    return (module, bound) if bound is not None and bound.row == record.row else None


def _unknown_recipe(record: SiteRecord, activation: BoundActivation | None, metadata: FileMetadata) -> str:
    """Say that a recorded recipe is none of the activation's; another release may have had others."""
    foreign = activation is not None and not activation.in_table
    if not record.recipe or foreign or metadata.versions.get("lit-gelu") != versions()["lit-gelu"]:
        return ""
    if (row := TABLE.get(record.row)) is None:
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
    try:
        inner = operators(record.recipe.removeprefix(REGION))
    except (SyntaxError, TypeError, ValueError) as error:
        return f"the recorded recipe {record.recipe!r} cannot be read ({error})"
    of_recipe = ("Cast", *inner, "Cast") if record.recipe.startswith(REGION) else inner
    if record.recipe and of_recipe != record.operators:
        return f"{', '.join(of_recipe)} is recorded as the recipe, {', '.join(record.operators)} as the operators"
    for call in (nodes[start : start + size] for start in range(0, len(nodes), max(size, 1))):
        if tuple(map(operator_name, call)) != record.operators:
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
    schema = (
        onnx.defs.get_schema(node.op_type) if "::" not in operator_name(node) and onnx.defs.has(node.op_type) else None
    )
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


STRIDE = 16411  # a prime: every binade is met at other mantissas; about 260,000 values
DTYPES_OF_ELEMENTS: Mapping[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
}


def activation_rows(
    model: onnx.ModelProto,
    entries: Sequence[SiteNodes],
    module: nn.Module,
    metadata: FileMetadata,
    setup: SessionSetup,
    tolerance: float,
    registry: ActivationRegistry,
) -> tuple[list[ParityRow], list[str]]:
    """Run each distinct activation of the file alone; say which could not be."""
    modules = dict(module.named_modules())
    first = {entry.site: entry for entry in reversed(entries)}
    inner = sites_in_subgraphs(model)
    notes = [f"{r.spec} was not run alone: it is in a branch or a loop." for r in metadata.sites if r.site in inner]
    rows: dict[object, ParityRow] = {}
    for record in metadata.sites:
        entry, label = first.get(record.site), record.spec
        dtype = None if entry is None else DTYPES_OF_ELEMENTS.get(element_type(model, entry))
        if entry is None or dtype is None or not record.row or not record.calls:
            continue
        try:
            activation = modules.get(record.site)
            bound = None if activation is None else bind(activation, registry)
            if activation is None or bound is None or bound.row != record.row:
                pair = _stored_activation(record, registry)
                if pair is None:
                    continue
                activation, bound = pair
            key = (bound.row, repr(sorted(bound.arguments.items())), tuple(map(node_label, entry.nodes)), dtype)
            if key in rows:
                continue
            if any(row.inputs == label for row in rows.values()):  # equal specs, other learned parameters
                label = f"{record.spec} at {record.site}"
            rounding = _rounding(record, bound, metadata, dtype)
            rows[key] = activation_row(
                model, entry, activation, dtype, setup, label=label, tolerance=tolerance, rounding=rounding
            )
        except (ModelFileError, ActivationArgumentError) as error:  # torch takes arguments that no definition does
            notes.append(f"{label} could not be run alone: {error}")
    return list(rows.values()), notes


def _rounding(
    record: SiteRecord, bound: BoundActivation, metadata: FileMetadata, dtype: torch.dtype
) -> tuple[float, float] | None:
    """Return what a strict 16-bit recipe of the table is off by at most: in the last place, and beside that."""
    strict = metadata.lowering == "auto" and metadata.policy == "strict"
    if dtype == torch.float32 or not strict or not bound.in_table or not record.recipe:
        return None
    choice = Choice(record.recipe.removeprefix(REGION), record.lowering, record.recipe.startswith(REGION))
    sigma = np.abs(np.asarray(bound.arguments.get("sigma", 1.0), dtype=np.float64)).max()  # the table's is of sigma 1
    return ulp_bound(choice), absolute_error(TABLE[record.row], choice) * max(1.0, float(sigma))


def activation_row(
    model: onnx.ModelProto,
    entry: SiteNodes,
    module: nn.Module,
    dtype: torch.dtype,
    setup: SessionSetup,
    *,
    label: str,
    tolerance: float = FLOOR,
    rounding: tuple[float, float] | None = None,
    largest: float = float("inf"),
) -> ParityRow:
    """Compare one activation's own nodes with its definition, over all values of a 16-bit dtype or float32's range."""
    # Up to ``largest`` in magnitude: a foreign formula may overflow in between.
    # The limit is max(floor(dtype), 2 own_error) in units of max(1, |y64|). NaN must stay NaN, and a finite input must
    # not give a NaN or an infinity that PyTorch does not give. Infinite inputs are not compared: PyTorch's kernels do
    # not agree among themselves there. In 16 bits each value may also be off by twice its recipe's rounding or twice
    # PyTorch's error there: in units of max(1, |y64|) a tail could be that of any other function.
    twin = copy.deepcopy(module)
    twin._forward_pre_hooks.clear()  # what hooks do is in other nodes
    twin._forward_hooks.clear()
    for tensor in itertools.chain(twin.parameters(), twin.buffers()):  # the first channel, which `cut_out` keeps too
        if tensor.ndim and tensor.numel() > 1:
            tensor.data = tensor.data.reshape(-1)[:1]
    twin = twin.cpu().eval()
    x = sweep_values(dtype)
    x = x[x.abs() <= largest]
    nans = torch.tensor([np.nan]) if dtype == torch.float32 else all_values(dtype)
    with setup.opened(cut_out(model, entry)) as predictor:
        y, y_nans = (run_file(predictor, (v,))[0].astype(np.float64) for v in (x, nans[nans.isnan()]))
    with torch.no_grad():
        # In 16 bit the registry's closed form, if it has one: torch's float64 kernels are no reference for tails, where
        # ``x (1 + erf(x / sqrt(2))) / 2`` is 0 below -8.3. In float32 no tail is judged in units of its own size.
        twin = twin.double()
        definition = twin(x.double()) if dtype == torch.float32 else derivative(twin, x.double(), order=0)
        exact = overflowed(as_array(definition).astype(np.float64), dtype)
        baseline = as_array(twin.to(dtype)(x.clone())).astype(np.float64)  # it may overwrite its input
    points = as_array(x).astype(np.float64)
    scaled, own_scaled = (scaled_errors(values, exact) for values in (y, baseline))
    error, own_error = map(_largest, (scaled, own_scaled))
    near = np.abs(points) <= 6
    absolute, own_absolute = (distance(values[near], exact[near]) for values in (y, baseline))
    lost = ~np.isnan(y_nans)
    count = f"all {len(x):,} finite values" if len(x) == len(sweep_values(dtype)) < 2**16 else f"{len(x):,} values"
    detail = (
        f"{' '.join(map(operator_name, entry.nodes))}, {count}; largest error for |x| <= 6 {_largest(absolute):.3g}, "
        f"PyTorch {_largest(own_absolute):.3g}"
    )
    if lost.any():
        detail += "; a NaN does not stay one"
    return ParityRow(
        comparison=ELEMENTWISE,
        inputs=label,
        output="",
        count=len(x),
        max_abs_error=_largest(absolute),
        scale=1.0,
        error=error,
        own=own_error,
        limit=limit(own_error, dtype, tolerance),
        spread=_largest(own_absolute),
        nonfinite=int(np.count_nonzero(~np.isfinite(scaled) & np.isfinite(own_scaled))) + int(lost.any()),
        detail=detail,
        **({} if rounding is None else _worst_input(points, y, exact, baseline, dtype, rounding)),
    )


def _largest(errors: np.ndarray) -> float:
    """Return the largest error; those that are not finite are counted elsewhere."""
    return float(np.max(errors, initial=0.0, where=np.isfinite(errors)))


def _worst_input(
    points: np.ndarray,
    y: np.ndarray,
    exact: np.ndarray,
    baseline: np.ndarray,
    dtype: torch.dtype,
    rounding: tuple[float, float],
) -> dict[str, Any]:
    """Return the input with the largest error in units of what its recipe's rounding allows, as a row has it."""
    finite = np.isfinite(y) & np.isfinite(exact)
    if not finite.any():
        return {}
    points, y, exact, baseline = points[finite], y[finite], exact[finite], baseline[finite]
    baseline_error = np.where(np.isfinite(baseline), np.abs(baseline - exact), 0.0)
    limits = FACTOR * np.maximum(rounding[0] * spacing(exact, dtype) + rounding[1], baseline_error)
    errors = np.abs(y - exact)
    i = int(np.argmax(errors / limits))
    scale = float(abs(exact[i]))
    figures = {"index_error": float(errors[i]), "index_limit": float(limits[i]), "index_scale": scale}
    return {"index": f"x = {points[i]:.6g}", **figures}


def scaled_errors(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return errors in units of ``max(1, |exact|)``: 0 at the same infinity, infinite where one only is finite."""
    with np.errstate(invalid="ignore"):
        error = distance(y, exact) / np.maximum(1.0, np.abs(exact))
    return np.where(np.isnan(error), np.inf, error)


@cache
def sweep_values(dtype: torch.dtype) -> Tensor:
    """Return all finite values in 16 bit; of float32 every 16411th bit pattern, and 2^16 points over [-20, 20]."""
    if dtype != torch.float32:
        return all_values(dtype)[all_values(dtype).isfinite()]
    patterns = np.arange(0, 2**32, STRIDE, dtype=np.uint64).astype(np.uint32).view(np.float32)
    grid = np.linspace(-20, 20, 2**16, dtype=np.float32)
    return torch.from_numpy(np.concatenate([patterns[np.isfinite(patterns)], grid]))


def all_values(dtype: torch.dtype) -> Tensor:
    """Return every value of a 16-bit dtype, NaN and infinities too."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
