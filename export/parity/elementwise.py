"""Each distinct activation of a file alone: its own nodes on all 16-bit values, or over float32's range."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from lit_gelu.activations import ActivationArgumentError, ActivationRegistry
from lit_gelu.activations.functional import derivative
from lit_gelu.errors import ModelFileError
from lit_gelu.export.inputs import as_array
from lit_gelu.export.lowering.lowering_table import TABLE, BoundActivation, bind
from lit_gelu.export.lowering.policy import Choice, absolute_error, ulp_bound
from lit_gelu.export.metadata import FileMetadata, SiteRecord
from lit_gelu.export.parity.criterion import FACTOR, FLOOR, distance, limit, overflowed, spacing
from lit_gelu.export.parity.report import ELEMENTWISE, ParityRow
from lit_gelu.export.parity.runs import SessionSetup, run_file
from lit_gelu.export.parity.structure import REGION, SiteNodes, full_name, node_label, sites_in_subgraphs

STRIDE = 16411  # a prime: every binade is met at other mantissas; about 260,000 values
_DTYPES: Mapping[int, torch.dtype] = {
    int(onnx.TensorProto.FLOAT): torch.float32,
    int(onnx.TensorProto.FLOAT16): torch.float16,
    int(onnx.TensorProto.BFLOAT16): torch.bfloat16,
}


@dataclass(frozen=True)
class Rounding:
    """What an activation's 16-bit recipe is known to be off by, at any input."""

    units: float  # in the last place
    absolute: float  # beside that


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
    reason = "it is called within a branch or a loop."
    notes = [f"{r.spec} could not be run alone: {reason}" for r in metadata.sites if r.site in inner]
    rows: dict[object, ParityRow] = {}
    for record in metadata.sites:
        entry, label = first.get(record.site), record.spec
        dtype = None if entry is None else _DTYPES.get(element_type(model, entry))
        if entry is None or dtype is None:
            continue
        try:
            pair = _module_of(record, modules, registry)
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


def _module_of(
    record: SiteRecord, modules: Mapping[str, nn.Module], registry: ActivationRegistry
) -> tuple[nn.Module, BoundActivation] | None:
    """Return a site's module and activation: the module's own, or for a function call a new one from the spec."""
    if not record.row or not record.calls:
        return None
    module = modules.get(record.site)
    bound = None if module is None else bind(module)
    if module is None or bound is None or bound.row != record.row:
        module = registry.create(record.spec, trusted=False)  # the file's text: looked up, never imported
        bound = bind(module)
    return (module, bound) if bound is not None and bound.row == record.row else None


def _rounding(
    record: SiteRecord, bound: BoundActivation, metadata: FileMetadata, dtype: torch.dtype
) -> Rounding | None:
    """Return what a strict 16-bit recipe of the table is off by at most; ``None`` for any other."""
    strict = metadata.lowering == "auto" and metadata.policy == "strict"
    if dtype == torch.float32 or not strict or not bound.in_table or not record.recipe:
        return None
    choice = Choice(record.recipe.removeprefix(REGION), record.lowering, record.recipe.startswith(REGION))
    sigma = np.abs(np.asarray(bound.arguments.get("sigma", 1.0), dtype=np.float64)).max()  # the table's is of sigma 1
    return Rounding(ulp_bound(choice), absolute_error(TABLE[record.row], choice) * max(1.0, float(sigma)))


def activation_row(
    model: onnx.ModelProto,
    entry: SiteNodes,
    module: nn.Module,
    dtype: torch.dtype,
    setup: SessionSetup,
    *,
    label: str,
    tolerance: float = FLOOR,
    rounding: Rounding | None = None,
) -> ParityRow:
    """Compare one activation's own nodes with its definition, over all values of a 16-bit dtype or float32's range."""
    # The limit is max(floor(dtype), 2 own_error) in units of max(1, |y64|). NaN must stay NaN, and a finite input must
    # not give a NaN or an infinity that PyTorch does not give. Infinite inputs are not compared: PyTorch's kernels do
    # not agree among themselves there (F.gelu(-inf) is NaN), and a net whose pre-activations are infinite is lost
    # already. In 16 bits each value may also be off by twice its recipe's rounding or twice PyTorch's error there: in
    # units of max(1, |y64|) a tail could be that of any other function.
    twin = copy.deepcopy(module)
    for tensor in itertools.chain(twin.parameters(), twin.buffers()):  # the first channel, which `cut_out` keeps too
        if tensor.ndim and tensor.numel() > 1:
            tensor.data = tensor.data.reshape(-1)[:1]
    twin = twin.cpu().eval()
    x, nans = sweep_values(dtype), nan_values(dtype)
    with setup.opened(cut_out(model, entry)) as predictor:
        y, y_nans = (run_file(predictor, (values,))[0].astype(np.float64) for values in (x, nans))
    with torch.no_grad():
        # The registry's closed form, if it has one: torch's float64 kernels are no reference for tails, where
        # ``x (1 + erf(x / sqrt(2))) / 2`` is 0 below -8.3.
        definition = derivative(twin.double(), x.double(), order=0)
        exact = overflowed(as_array(definition).astype(np.float64), dtype)
        baseline = as_array(twin.to(dtype)(x.clone())).astype(np.float64)  # it may overwrite its input
    points = as_array(x).astype(np.float64)
    scaled, own_scaled = (scaled_errors(values, exact) for values in (y, baseline))
    error, own_error = map(_largest, (scaled, own_scaled))
    near = np.abs(points) <= 6
    absolute, own_absolute = (distance(values[near], exact[near]) for values in (y, baseline))
    lost = ~np.isnan(y_nans)
    count = f"{len(x):,} values" if dtype == torch.float32 else f"all {len(x):,} finite values"
    detail = (
        f"{' '.join(map(full_name, entry.nodes))}, {count}; largest error for |x| <= 6 {_largest(absolute):.3g}, "
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
    points: np.ndarray, y: np.ndarray, exact: np.ndarray, baseline: np.ndarray, dtype: torch.dtype, rounding: Rounding
) -> dict[str, Any]:
    """Return the input with the largest error in units of what its recipe's rounding allows, as a row has it."""
    finite = np.isfinite(y) & np.isfinite(exact)
    points, y, exact, baseline = points[finite], y[finite], exact[finite], baseline[finite]
    theirs = np.where(np.isfinite(baseline), np.abs(baseline - exact), 0.0)
    limits = FACTOR * np.maximum(rounding.units * spacing(exact, dtype) + rounding.absolute, theirs)
    errors = np.abs(y - exact)
    i = int(np.argmax(errors / limits))
    return {
        "index": f"x = {points[i]:.6g}",
        "index_error": float(errors[i]),
        "index_limit": float(limits[i]),
        "index_scale": float(abs(exact[i])),
    }


def scaled_errors(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return errors in units of ``max(1, |exact|)``: 0 at the same infinity, infinite where one only is finite."""
    with np.errstate(invalid="ignore"):
        error = np.abs(y - exact) / np.maximum(1.0, np.abs(exact))
    return np.where(y == exact, 0.0, np.where(np.isnan(error), np.inf, error))


@cache
def sweep_values(dtype: torch.dtype) -> Tensor:
    """Return the finite values that an activation is swept over.

    All in 16 bit; of float32 every 16411th bit pattern, and 2^16 points over [-20, 20].
    """
    if dtype != torch.float32:
        values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        return values[values.isfinite()]
    patterns = np.arange(0, 2**32, STRIDE, dtype=np.uint64).astype(np.uint32).view(np.float32)
    grid = np.linspace(-20, 20, 2**16, dtype=np.float32)
    return torch.from_numpy(np.concatenate([patterns[np.isfinite(patterns)], grid]))


@cache
def nan_values(dtype: torch.dtype) -> Tensor:
    """Return NaN, in 16 bit every one."""
    if dtype == torch.float32:
        return torch.tensor([np.nan])
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return values[values.isnan()]


def cut_out(model: onnx.ModelProto, entry: SiteNodes) -> onnx.ModelProto:
    """Return one call of an activation as a model of its own, from a vector ``x`` to a vector ``y``."""
    # Of constants with one value a channel the first is taken.
    nodes, names = list(entry.nodes), {name for node in entry.nodes for name in node.input}
    constants = []
    for tensor in model.graph.initializer:
        if tensor.name in names:
            array = numpy_helper.to_array(tensor)
            first = np.ravel(array)[:1].copy()
            constants.append(tensor if array.size <= 1 else numpy_helper.from_array(first, tensor.name))
    if nodes[0].op_type == "BiasGelu":  # a layer's bias and activation in one node: rows of one value, and a bias of 0
        (x, bias), (y,) = nodes[0].input, nodes[0].output
        inner = onnx.NodeProto()
        inner.CopyFrom(nodes[0])
        inner.input[0], inner.output[0] = f"{x}_rows", f"{y}_rows"
        axis = numpy_helper.from_array(np.array([1]), "axis_of_rows")
        nodes = [
            onnx.helper.make_node("Unsqueeze", [x, axis.name], [inner.input[0]]),
            inner,
            onnx.helper.make_node("Squeeze", [inner.output[0], axis.name], [y]),
        ]
        constants = [numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(constants[0])), bias), axis]
    ports = [onnx.helper.make_tensor_value_info(entry.x, element_type(model, entry), ["n"])]
    results = [onnx.ValueInfoProto(name=entry.y)]
    graph = onnx.helper.make_graph(nodes, "activation", ports, results, initializer=constants)
    cut = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    cut.functions.extend(model.functions)
    return cut


def element_type(model: onnx.ModelProto, entry: SiteNodes) -> int:
    """Return the element type of an activation's input, as onnx numbers them; float where the file does not say."""
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    types = {value.name: int(value.type.tensor_type.elem_type) for value in values}
    element_types = [types[name] for name in (entry.x, entry.y) if types.get(name)]
    return element_types[0] if element_types else int(onnx.TensorProto.FLOAT)
