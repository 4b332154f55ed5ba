"""From a module to an ONNX graph: torch's exporter, with a batch that is really dynamic and without its chatter."""

import contextlib
import io
import itertools
import logging
import re
import warnings
from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir
import torch

from lit_gelu.export.errors import ExportError
from lit_gelu.export.inputs import SCOPE, Call, FlatModule, OpenSize
from lit_gelu.export.runtime.captured_stdout import captured_stdout
from lit_gelu.export.shape_arithmetic import fold_shape_arithmetic
from lit_gelu.export.torch_translations import read_once
from lit_gelu.export.trial import Trial, random_message

BOUNDS = "bounds"  # where a traced graph keeps them, among what is not written to the file
_RANDOM = frozenset({
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
})
_DATA_DEPENDENT = "data-dependent"  # as torch says of a branch on values
_INPUTS_OF_LIVE_DROPOUT = 3  # data, ratio, training_mode; in evaluation the exporter writes none of it


def trace(flat: FlatModule, trial: Trial, opset: int, sizes: Sequence[OpenSize]) -> ir.Model:
    """Export a module to a graph whose open sizes have their names everywhere, and what they may be in `BOUNDS`."""
    model, fixed = _export(flat, trial, opset, sizes)
    _require_deterministic(model, flat)
    _name_values(model)
    _name_sizes(model, sizes, fixed)
    _require_dynamic(model, flat, trial, sizes)
    _require_open(model, flat, sizes)
    if any(node.op_type in {"Shape", "Reshape"} for node in model.graph):
        fold_shape_arithmetic(model, {size.name for size in sizes if size.axis == 0 and flat.call.batched[size.place]})
    for name in [name for name in model.graph.initializers if name.startswith(f"{SCOPE}.")]:
        plain = name.removeprefix(f"{SCOPE}.")
        if plain not in model.graph.initializers:  # a module may have a child called as the preprocessing is here
            model.graph.initializers[name].name = plain
    return model


def _export(flat: FlatModule, trial: Trial, opset: int, sizes: Sequence[OpenSize]) -> tuple[ir.Model, dict[str, str]]:
    """Call torch's exporter; return the graph, and the sizes that have one value, by torch's names of them."""
    places = range(len(flat.call.names))
    shapes = tuple({size.axis: size.dim for size in sizes if size.place == place} or None for place in places)
    try:
        with read_once(), _quiet():  # which is of the whole process, so within the lock
            program = torch.onnx.export(
                flat,
                trial.tensors,
                dynamo=True,
                opset_version=opset,
                input_names=list(flat.call.names),
                output_names=list(trial.names),
                dynamic_shapes={"tensors": shapes},
                external_data=False,
                verbose=False,
            )
    except Exception as error:
        raise ExportError(_untranslated(flat, error)) from error
    if program is None:
        raise ExportError("torch.onnx.export returned nothing.")
    if program.exported_program is None:
        return program.model, {}
    program.model.meta[BOUNDS] = _bounds(program.exported_program, sizes)
    ranges = program.exported_program.range_constraints
    return program.model, {str(symbol): str(found.lower) for symbol, found in ranges.items() if found.is_singleton()}


def _untranslated(flat: FlatModule, error: BaseException) -> str:
    """Say why a module has no graph: what torch's error was caused by in the end, and what to do about it."""
    while error.__cause__ is not None:
        error = error.__cause__
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    if first.startswith("Constraints violated"):
        return _violated(flat, others)
    if _DATA_DEPENDENT in first:
        mend = (
            "A forward whose control flow depends on values in tensors has no ONNX graph: use torch.where, or move "
            "that code out of forward."
        )
    else:
        mend = "Write that part of forward in other operators of torch, or move it out of forward."
    return f"torch.onnx.export cannot translate {type(flat.model).__name__}: {first.rstrip('.')}. {mend}"


def _bounds(program: torch.export.ExportedProgram, sizes: Sequence[OpenSize]) -> dict[str, tuple[int, int | None]]:
    """Return within which sizes a graph is what forward computes, by their names; ``None`` for no upper end."""
    # torch.export.export refuses a Dim that is wider than that. torch.onnx.export says nothing.
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    bounds = {}
    for size in sizes:
        tensor = values[program.graph_signature.user_inputs[size.place]]
        symbol = getattr(getattr(tensor.shape[size.axis], "node", None), "expr", None)
        found = program.range_constraints.get(symbol)
        if found is not None:
            upper = int(found.upper) if found.upper.is_Integer else None
            bounds[size.name] = (int(found.lower), upper)
    return bounds


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter: it prints progress and graphs, logs its failed attempts, and warns of its own internals."""
    refuse = logging.Filter("no logger's name")  # lets nothing pass
    handlers = [handler for name in ("", "torch") for handler in logging.getLogger(name).handlers]
    with (
        warnings.catch_warnings(),
        captured_stdout(),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        for handler in handlers:
            handler.addFilter(refuse)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(refuse)


def _require_deterministic(model: ir.Model, flat: FlatModule) -> None:
    """Refuse a graph that draws random numbers, which a trial run on zeros does not show."""
    drawn = {
        node.op_type
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.inputs) == _INPUTS_OF_LIVE_DROPOUT)
    }
    if drawn:
        raise ExportError(random_message(type(flat.model).__name__, ", ".join(sorted(drawn))))


def _name_values(model: ir.Model) -> None:
    """Rename what has the name of an output: torch names values after functions, and does not look whether one is."""
    taken = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    keep = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.outputs:
            if value.name in taken and id(value) not in keep:
                value.name = f"{value.name}.value"


def _violated(flat: FlatModule, lines: Sequence[str]) -> str:
    """Say in a file's words what torch says of open sizes that the module does not leave open, or ties together."""

    def axis(found: re.Match[str]) -> str:
        return f"axis {found[2]} of {flat.call.names[int(found[1])]!r}"

    said = " ".join(line.removeprefix("  - ") for line in lines if line.startswith("  - "))
    return (
        f"{type(flat.model).__name__}.forward does not take the open sizes of dynamic_shapes= as they are: "
        + re.sub(r"(?:\w+ = )?L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]", axis, said)
        + " Give sizes that are always equal one name, and leave out those that forward fixes."
    )


def _name_sizes(model: ir.Model, sizes: Sequence[OpenSize], names: dict[str, str]) -> None:
    """Give open sizes their names in every shape, and those of one value that, by torch's names of them."""
    # torch calls a size s77 where several inputs share it, and one that a Dim.AUTO left open though it is fixed.
    for size in sizes:
        symbol = _dim(model, size)
        if isinstance(symbol, str) and symbol.isidentifier():
            names.setdefault(symbol, size.name)
    values = [
        *model.graph.inputs,
        *(v for node in ir.traversal.RecursiveGraphIterator(model.graph) for v in node.outputs),
    ]
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape([dim if isinstance(dim, int) else _renamed(dim, names) for dim in value.shape])


def _renamed(dim: ir.SymbolicDim, names: dict[str, str]) -> ir.SymbolicDim | int:
    """Return a dimension with symbols renamed, within expressions too."""
    if dim.value is None:
        return ir.SymbolicDim(None)
    name = re.sub(r"\b[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), str(dim.value))
    return int(name) if name.isdecimal() else ir.SymbolicDim(name)


def _dim(model: ir.Model, size: OpenSize) -> int | str | None:
    """Return what a graph has at the place of a size: its name, or a number if it is fixed."""
    shape = model.graph.inputs[size.place].shape
    dim = None if shape is None else shape[size.axis]
    return dim.value if isinstance(dim, ir.SymbolicDim) else dim


def _require_open(model: ir.Model, flat: FlatModule, sizes: Sequence[OpenSize]) -> None:
    """Refuse a graph in which a size that should be open is fixed, or tied to another one."""
    call, opened = flat.call, {(size.place, size.axis) for size in sizes}
    for size in sizes:
        dim = _dim(model, size)
        is_open = not isinstance(dim, int) and (dim == size.name or not size.named)
        if is_open or not size.required:
            continue
        where = f"dynamic_shapes= has {size.name!r}, but axis {size.axis} of {call.names[size.place]!r} is"
        if not isinstance(dim, int):
            raise ExportError(f"{where} always {dim!r} in forward. Give sizes that are always equal one name.")
        alike = " or ".join(f"axis {axis} of {name!r}" for name, axis in _as_long(call, dim, opened))
        hint = f"If that is as long as {alike}, open both by one name. " if alike else ""
        raise ExportError(
            f"{where} fixed at the sample's {dim} by {type(flat.model).__name__}.forward. {hint}Weights for each "
            "place, a table of them, a check of the size or int() of it fix one: leave it out, or change forward."
        )


def _as_long(call: Call, length: int, opened: Collection[tuple[int, int]]) -> list[tuple[str, int]]:
    """Return the sizes that have a length and are not opened: names of inputs, and axes."""
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


def _require_dynamic(model: ir.Model, flat: FlatModule, trial: Trial, sizes: Sequence[OpenSize]) -> None:
    """Refuse a graph whose batch is fixed at the sample's size."""
    rows = trial.tensors[0].shape[0]
    fixed = [
        value.name
        for value, batched in zip(model.graph.inputs, flat.call.batched, strict=True)
        if batched and value.shape is not None and isinstance(value.shape[0], int)
    ]
    fixed += [
        value.name
        for value, tensor in zip(model.graph.outputs, trial.outputs, strict=True)
        if tensor.ndim
        and value.shape is not None
        and tensor.shape[0] == rows == value.shape[0]
        # As many layers as rows: the batch is another axis of a recurrent net's state.
        and sizes[0].name not in {str(dim.value) for dim in value.shape[1:] if isinstance(dim, ir.SymbolicDim)}
    ]
    if fixed:
        batched = ", ".join(itertools.compress(flat.call.names, flat.call.batched))
        raise ExportError(
            f"The batch of {', '.join(map(str, fixed))} is fixed at the sample's {rows} rows: "
            f"{type(flat.model).__name__}.forward turns the batch size into a Python number. Use x.shape[0] as it is "
            "(no int(), no list of it), x.flatten(1) or x.reshape(-1, ...), and make no buffer of that size. "
            f"{_batch_elsewhere(flat.call, sizes)}Or is {flat.call.batch_size} the size of something else by chance? "
            f"What is as long as the first input is taken for a batch ({batched}): give a sample with another number "
            "of rows."
        )


def _batch_elsewhere(call: Call, sizes: Sequence[OpenSize]) -> str:
    """Say how to open axes of other inputs that are as long as the batch: a recurrent net's state has it on axis 1."""
    opened = {(size.place, size.axis) for size in sizes}
    alike: dict[str, dict[int, str]] = {}
    for name, axis in _as_long(call, call.batch_size, opened):
        if not call.batched[call.names.index(name)]:
            alike.setdefault(name, {})[axis] = sizes[0].name
    return f"Where these axes are the batch too, name them so: dynamic_shapes={alike}. " if alike else ""
