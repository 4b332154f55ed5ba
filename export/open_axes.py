"""What an export asks of open axes: are they open in the graph, does it hold at other sizes, do rows see each other?"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
from torch import Tensor

from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import ArgumentError, ExportError, ModelFileError, ModelInputError
from lit_gelu.export.copying import Trial, evaluation_copy, nested_encoders, relative_difference, two_answers
from lit_gelu.export.input_kinds import Kind, integer_kinds, other_sizes, resized
from lit_gelu.export.inputs import (
    BOUNDS,
    Batch,
    Call,
    FlatModule,
    OpenSize,
    as_array,
    as_in_a_file,
    fixed_batch,
    named_outputs,
    named_shapes,
    random_batch,
    sum_of,
)
from lit_gelu.export.lowering.lowering_table import BoundActivation
from lit_gelu.export.lowering.replace import lower
from lit_gelu.export.metadata import ExportOptions
from lit_gelu.export.runtime import CPU, OnnxPredictor
from lit_gelu.export.trace import dim_of

_ROWS = 2
# Of an output's root mean square, so that a few values that rounding decides, such as those of round(x), are no fault:
# what a size is fixed in shows all over.
_ALIKE = 1e-3
_NOTHING = 1e-6  # what is left where an output should be 0


def _require_open_batch(model: ir.Model, flat: FlatModule, trial: Trial, sizes: Sequence[OpenSize]) -> None:
    """Refuse a graph whose batch is fixed at the sample's size."""
    if not any(flat.call.batched):  # as was asked for
        return
    rows, batch = trial.tensors[0].shape[0], sizes[0].name
    fixed = [flat.call.names[s.place] for s in sizes if _is_of_batch(flat, s) and isinstance(dim_of(model, s), int)]
    fixed += [
        str(value.name)
        for value, tensor in zip(model.graph.outputs, trial.outputs, strict=True)
        if tensor.ndim
        and value.shape is not None
        and tensor.shape[0] == rows == value.shape[0]
        # As many layers as rows: the batch is another axis of a recurrent net's state.
        and batch not in {str(dim.value) for dim in value.shape[1:] if isinstance(dim, ir.SymbolicDim)}
    ]
    if not fixed:
        return
    others = {name: {axis: batch} for name, axis in _as_long(flat.call, flat.call.batch_size, sizes)}
    elsewhere = f" If axes of other inputs are the batch too, name them: dynamic_shapes={others}." if others else ""
    raise ExportError(
        f"The batch of {', '.join(fixed)} is fixed at the sample's {rows} rows: {type(flat.model).__name__}."
        "forward turns it into a Python number. Use x.shape[0] as it is (no int(), no list of it, no loop over rows) "
        "or x.flatten(1), and make no buffer of that size. If an input is as long as the batch by chance, give a "
        f"sample of other rows.{elsewhere} For a file of that many rows give dynamic_shapes={fixed_batch(flat.call)}."
    )


def require_open(model: ir.Model, flat: FlatModule, trial: Trial, sizes: Sequence[OpenSize]) -> None:
    """Refuse a graph in which a size that should be open is fixed, or tied to another one."""
    _require_open_batch(model, flat, trial, sizes)
    for size in sizes:
        dim = dim_of(model, size)
        is_open = not isinstance(dim, int) and (dim == size.name or not size.named)
        if is_open or not size.required:
            continue
        where = f"dynamic_shapes= has {size.name!r}, but axis {size.axis} of {flat.call.names[size.place]!r} is"
        if not isinstance(dim, int):
            raise ExportError(f"{where} always {dim!r} in forward. Give sizes that are always equal one name.")
        alike = _as_long(flat.call, dim, sizes)
        hint = f"Open axes that are as long by one name: {alike}. " if alike else ""
        raise ExportError(
            f"{where} fixed at the sample's {dim} by {type(flat.model).__name__}.forward. {hint}A loop over it, "
            "weights for each place, a check of the size or int() of it fix one: leave it out, or change forward."
        )


def _as_long(call: Call, length: int, sizes: Sequence[OpenSize]) -> list[tuple[str, int]]:
    """Return the sizes that have a length and are not opened: names of inputs, and axes."""
    opened = {(size.place, size.axis) for size in sizes}
    return [
        (call.names[place], axis)
        for place, tensor in enumerate(call.tensors)
        for axis, size in enumerate(tensor.shape)
        if size == length and (place, axis) not in opened
    ]


def recorded_sizes(model: ir.Model, call: Call) -> dict[str, dict[int, str]]:
    """Return the open sizes as a file records them, without the batch: names by input and axis."""
    sizes = {
        name: {
            axis: str(dim.value)
            for axis, dim in enumerate(value.shape or ())
            if isinstance(dim, ir.SymbolicDim) and not (batched and axis == 0)
        }
        for name, value, batched in zip(call.names, model.graph.inputs, call.batched, strict=True)
    }
    return {name: axes for name, axes in sizes.items() if axes}


@dataclass(frozen=True)
class OtherRun:
    """One run of the module at other sizes than the sample's."""

    sizes: Mapping[str, int]  # by the names that dynamic_shapes gave
    inputs: Batch
    outputs: tuple[Tensor, ...]

    @property
    def at_one(self) -> bool:
        """Whether all these sizes are 1, where torch's exporter sees no branch."""
        return set(self.sizes.values()) == {1}


def runs_at_other_sizes(
    flat: FlatModule, sizes: Sequence[OpenSize], *, dependent: bool = False
) -> tuple[list[OtherRun], list[str]]:
    """Run the module once with every open size changed, the batch if rows depend; say which could not be tried."""
    # All change in one run, which costs as little as can be; where the module does not take that, each for itself.
    # At a size of 1 forward may branch without torch's exporter seeing it, which takes every open size for 2 or more.
    rows = [size for size in sizes if _is_of_batch(flat, size)] if dependent else []
    chosen = [size for size in sizes if size.required and not _is_of_batch(flat, size)]
    lengths = {s.name: flat.call.tensors[s.place].shape[s.axis] for s in chosen if len(sum_of(s.name)) < 2}
    ones = [
        _run(flat, group, {part: 1 for size in group for part in sum_of(size.name)})
        for group in (rows, chosen)
        if group
    ]
    runs, notes = [run for run in ones if isinstance(run, OtherRun)], []
    if not lengths:
        return runs, []
    together = _accepted_run(flat, chosen, lengths)
    if isinstance(together, OtherRun):
        return [*runs, together], []
    for name, length in lengths.items():
        run = _accepted_run(flat, chosen, {name: length})
        if isinstance(run, OtherRun):
            runs.append(run)
        else:
            notes.append(f"the open size {name!r} was tried at the sample's {length} alone: with others {run}.")
    return runs, notes


def _is_of_batch(flat: FlatModule, size: OpenSize) -> bool:
    return size.axis in flat.call.batch_axes[size.place]


def _accepted_run(flat: FlatModule, chosen: Sequence[OpenSize], lengths: Mapping[str, int]) -> OtherRun | str:
    """Run the module at the first other sizes that it takes; say why it takes none."""
    reason = "there is nothing to try"
    for sizes in other_sizes(lengths, lambda sizes: isinstance(_run(flat, chosen, sizes), OtherRun)):
        run = _run(flat, chosen, sizes)
        if isinstance(run, OtherRun):
            return run
        reason = run
    return reason


def _run(flat: FlatModule, chosen: Sequence[OpenSize], sizes: Mapping[str, int]) -> OtherRun | str:
    for size in chosen:
        least, most = size.bounds  # torch's hints may have none
        n = sizes.get(size.name, least)  # those of a sum are its parts'
        if n is not None and not (least or 0) <= n <= (most or n):
            return f"{size.name} would be outside the bounds of dynamic_shapes="
    call = replace(flat.call, tensors=resized(flat.call, named_shapes(flat.call, chosen), sizes))
    rows = next((sizes[size.name] for size in chosen if size.name in sizes and _is_of_batch(flat, size)), _ROWS)
    inputs = random_batch(call, rows, torch.Generator().manual_seed(0), {}, raw=flat.preprocessing is not None)
    try:
        outputs = named_outputs(flat.tried(inputs))
    except Exception as error:  # noqa: BLE001 - forward is the user's: whatever it raises is reported
        return f"forward fails ({error})"
    tensors = tuple(as_in_a_file(tensor) for _, tensor in outputs)
    finite = all(bool(t.isfinite().all()) for t in tensors)
    return OtherRun(dict(sizes), inputs, tensors) if finite else "outputs are not finite"


def require_alike(
    graph: ir.Model,
    flat: FlatModule,
    runs: Sequence[OtherRun],
    marked: Mapping[str, BoundActivation],
    registry: ActivationRegistry,
    target: str,
) -> list[str]:
    """Refuse a traced graph that does not compute what the module computed; return what it does not hold for."""
    # What fixes a size is in the graph as torch made it. So its float32 form for the CPU is run, whatever the file's
    # dtype and target are: 16 bit would hide small differences, and there is no kernel for some of it here.
    # What the CPU has no kernel for in float64, CUDA may have.
    inside = (y.dtype == ir.DataType.DOUBLE for node in graph.graph.all_nodes() for y in node.outputs)
    wide = bool(flat.call.wide) or (target in {"portable", "ort-cpu"} and any(inside))
    if not runs and not wide:
        return []
    twin = graph.clone()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            form = ExportOptions.checked(target="portable" if target == "portable" else "ort-cpu")
            lower(twin, marked, form, registry)
            ir.save(twin, path, external_data="weights")
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4  # errors are raised
            predictor = OnnxPredictor(path, [CPU], options)
        except (ArgumentError, ModelFileError) as error:
            if wide:
                raise ExportError(
                    f"{type(flat.model).__name__} computes in float64 what onnxruntime has in float32 alone: "
                    f"{error.__cause__ or error}. Call .float() before it."
                ) from error
            return [f"no other size than the sample's was tried: {error}"]
        notes = []
        for run in runs:
            trouble = _trouble(predictor, run)
            if trouble and run.at_one and not (any(flat.call.batched) and len(run.inputs[0]) == 1):
                bounds = " ".join(graph.meta.get(BOUNDS, []))
                names = " and ".join(repr(name) for name in run.sizes if f"{name!r} from" not in bounds)
                notes += [f"the graph holds for {names} from 2; at 1 it {trouble}: forward branches."] if names else []
            elif trouble:
                raise ExportError(_message(flat, run, trouble))
    return notes


def _trouble(predictor: OnnxPredictor, run: OtherRun) -> str:
    try:
        result = predictor(*run.inputs)
    except (ModelFileError, ModelInputError) as error:
        return f"fails ({error.__cause__ or error})"
    outputs = result if isinstance(result, tuple) else (result,)
    for name, expected, there in zip(predictor.output_names, run.outputs, outputs, strict=True):
        if expected.shape != there.shape:
            return f"gives {name!r} the shape {list(there.shape)}, and the module {list(expected.shape)}"
        if not expected.is_floating_point():  # rounding may decide whole numbers
            continue
        parts = (there - expected, expected)
        off, scale = (float(part.double().square().mean().sqrt()) if part.numel() else 0.0 for part in parts)
        if not off <= _ALIKE * scale + _NOTHING:
            return f"is off by {off:.2g} in {name!r}, which is {scale:.2g} (root mean squares)"
    return ""


def _message(flat: FlatModule, run: OtherRun, trouble: str) -> str:
    name, names = type(flat.model).__name__, " and ".join(map(repr, run.sizes))
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(flat.call.names, run.inputs, strict=True))
    if run.at_one and not trouble.startswith("fails"):
        return (
            f"{name}.forward does something else where {names} is 1 than where it is 2 or more, and a graph has one "
            f"branch: with {shapes} the graph {trouble}. Write that part without `if` and squeeze(), or export a file "
            "for that size alone: None for that axis in dynamic_shapes=, and a sample of that size."
        )
    return (
        f"dynamic_shapes= has {names}, but {name}.forward fixes something at the sample's size, as adaptive pooling to "
        f"more than one cell does, and int() of a size: with {shapes} the graph {trouble}. Pool to one cell "
        "(nn.AdaptiveAvgPool2d(1)), use x.shape[...] as it is, or take the size out of dynamic_shapes=."
    )


_BATCH = 4
_PADDED = 8  # rows with masks, half of which keep the first places: those alone become nested tensors
# Rows that are run alone: some with one before and one behind them, since a net may look in one direction alone; one,
# since a net may swap a pair; and each is missing somewhere, since it may hold what decides for all.
_SELECTIONS = (slice(1, 3), slice(1), slice(0, 4, 3))
# In units of an output's largest value. Kernels add in another order for another number of rows. What is above the
# first is asked again in float64, where no order of additions shows; where that does not run, it has to be more.
_SUSPICIOUS = 1e-4
_CERTAIN = 1e-2
# In units of the largest value of an entry of the last axis, since a large one would hide the others. Entries that are
# below the second in units of the output's largest may be rounding, also in float64: some modules compute a part of
# theirs in float32 there.
_OF_ENTRY = 1e-1
_LEAST_ENTRY = 1e-5


def rows_depend(flat: FlatModule) -> bool:
    """Return whether rows of a module's batch give something else alone than among others, if that can be tried."""
    if not any(flat.call.batched):
        return False
    for batch in _batches(flat):
        differences = list(_differences(flat, batch))
        if not differences:  # the module does not take the batch
            continue
        if not any(map(_suspicious, differences)):
            return False
        # Where float64 does not run, it has to be more than rounding of float32.
        doubles = [t.double() if t.is_floating_point() else t for t in batch]
        exact = list(_differences(_in_float64(flat), doubles))
        return any(map(_suspicious, exact)) if exact else any(of_output > _CERTAIN for of_output, _ in differences)
    return False


def without_nested_tensors_(flat: FlatModule) -> list[str]:
    """Let encoders compute padded places, as a file does; note where inference gives something else for them."""
    encoders = nested_encoders(flat.model)
    apart = 0.0
    for batch in _batches(flat, _PADDED) if encoders else ():
        for row in range(_PADDED):
            alone = flat.call.selected(batch, torch.tensor([row]))
            outputs = []
            for nested in (True, False):
                for encoder in encoders:
                    encoder.use_nested_tensor = nested
                outputs.append(_outputs(flat, alone))
            fast, slow = outputs
            if fast is not None and slow is not None:
                apart = max(apart, *map(relative_difference, fast, slow))
    return [two_answers(apart)] if apart > _CERTAIN else []


def _batches(flat: FlatModule, count: int = _BATCH) -> Iterator[Batch]:
    """Yield random rows, and then for a module that does not take them the sample's, rotated and as they are."""
    call, raw = flat.call, flat.preprocessing is not None
    rows = replace(call, tensors=call.resized(count), named=call.batch_axes)
    generator = torch.Generator().manual_seed(0)
    if places := call.whole_numbers(raw=raw):
        kinds: dict[int, Kind] = {}
        # Forward is the user's, and may raise anything: what does not run here is tried with the sample's values.
        with contextlib.suppress(Exception):
            kinds = integer_kinds(call, flat.tried, places)[0]
        if kinds:
            yield random_batch(rows, count, generator, kinds, raw=raw)
    rotated = tuple(
        torch.stack([row.roll(number, -1) for number, row in enumerate(t)])  # so that no two rows are equal
        if not t.is_floating_point() and tuple(axes) == (0,) and t.ndim > 1
        else t
        for t, axes in zip(rows.tensors, call.batch_axes, strict=True)
    )
    yield random_batch(replace(rows, tensors=rotated), count, generator, {}, raw=raw)
    yield rows.tensors


def _suspicious(difference: tuple[float, float]) -> bool:
    of_output, of_entry = difference
    return of_output > _SUSPICIOUS or of_entry > _OF_ENTRY


def _differences(flat: FlatModule | None, batch: Sequence[Tensor]) -> Iterator[tuple[float, float]]:
    """Yield by how much rows alone differ from the same among others, in units of the output and of its entry."""
    full_outputs = None if flat is None else _outputs(flat, batch)
    if flat is None or full_outputs is None:
        return
    for rows in _SELECTIONS:
        part = _outputs(flat, flat.call.selected(batch, torch.arange(_BATCH)[rows]))
        if part is None or len(part) != len(full_outputs):  # an output a row, say
            continue
        cut = [rows_of(y, of, rows, _BATCH) for y, of in zip(part, full_outputs, strict=True)]
        pairs = [(y, of) for y, of in zip(part, cut, strict=True) if of is not None and np.isfinite(of).any()]
        if pairs:
            yield max(relative_difference(y, of) for y, of in pairs), max(_of_entries(y, of) for y, of in pairs)


def _of_entries(y: np.ndarray, of: np.ndarray) -> float:
    """Return the largest difference in units of the largest value of its entry of the last axis."""
    if of.ndim < 2:  # one axis is the rows alone
        return 0.0
    a, b = (value.astype(np.float64).reshape(-1, value.shape[-1]) for value in (y, of))
    largest = np.where(np.isfinite(b), np.abs(b), 0.0).max(axis=0, initial=0.0)
    units = np.maximum(largest, _LEAST_ENTRY * largest.max(initial=0.0))
    with np.errstate(invalid="ignore"):  # the same infinity in both is no difference
        return float(np.nanmax(np.abs(a - b) / np.where(units == 0, 1.0, units), initial=0.0))


def _outputs(flat: FlatModule, batch: Sequence[Tensor]) -> list[np.ndarray] | None:
    """Return the outputs for a batch; ``None`` if the module does not take it."""
    try:
        return [as_array(tensor) for _, tensor in named_outputs(flat.tried(batch))]
    except Exception:  # noqa: BLE001 - forward is the user's: that it does not take a batch says nothing of its rows
        return None


def _in_float64(flat: FlatModule) -> FlatModule | None:
    """Return a copy in float64; ``None`` if there is no room for one, or it cannot be copied once it has run."""
    try:
        preprocessing = None if flat.preprocessing is None else evaluation_copy(flat.preprocessing, torch.float64)
        return FlatModule(evaluation_copy(flat.model, torch.float64), flat.call, preprocessing, softmax=flat.softmax)
    except (ExportError, RuntimeError, MemoryError):
        return None


def rows_of(y: np.ndarray, full_output: np.ndarray, chosen: slice, all_rows: int) -> np.ndarray | None:
    """Return the part of a large batch's output that the chosen rows give; ``None`` if that is unknown."""
    # Every axis that is as long as the batch in both is cut, such as both of a similarity of all rows with all. An axis
    # that changes in another way, such as rows times heads, has no part that is known to be these rows'.
    rows = len(range(all_rows)[chosen])
    batch = [pair == (rows, all_rows) and rows != all_rows for pair in zip(y.shape, full_output.shape, strict=False)]
    if y.ndim != full_output.ndim or not any(batch):
        return None
    cut = full_output[tuple(chosen if is_batch else slice(None) for is_batch in batch)]
    return cut if cut.shape == y.shape else None
