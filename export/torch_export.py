"""From a module to an ONNX graph: torch's exporter, with a batch that is really dynamic and without its chatter."""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir
import torch

from lit_gelu.export.errors import ExportError
from lit_gelu.export.inputs import SCOPE, FlatModule
from lit_gelu.export.sizes import OpenSize, torch_shapes
from lit_gelu.export.trial import Trial, random_message

_RANDOM = frozenset({
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
})
_INPUTS_OF_LIVE_DROPOUT = 3  # data, ratio, training_mode; in evaluation the exporter writes none of it


def trace(
    flat: FlatModule, trial: Trial, opset: int, sizes: Sequence[OpenSize]
) -> tuple[ir.Model, tuple[OpenSize, ...]]:
    """Export a module to a graph whose open sizes have their names everywhere; return which are open."""
    model, fixed = _export(flat, trial, opset, sizes)
    _require_deterministic(model, flat)
    _name_values(model)
    _name_sizes(model, sizes, fixed)
    _require_dynamic(model, flat, trial)
    opened = _opened(model, flat, sizes)
    for name in [name for name in model.graph.initializers if name.startswith(f"{SCOPE}.")]:
        plain = name.removeprefix(f"{SCOPE}.")
        if plain not in model.graph.initializers:  # a module may have a child called as the preprocessing is here
            model.graph.initializers[name].name = plain
    return model, opened


def _export(flat: FlatModule, trial: Trial, opset: int, sizes: Sequence[OpenSize]) -> tuple[ir.Model, dict[str, str]]:
    """Call torch's exporter; return the graph, and the sizes that have one value, by torch's names of them."""
    try:
        with _quiet():
            program = torch.onnx.export(
                flat,
                trial.tensors,
                dynamo=True,
                opset_version=opset,
                input_names=list(flat.call.names),
                output_names=list(trial.names),
                dynamic_shapes={"tensors": torch_shapes(sizes, flat.call)},
                external_data=False,
                verbose=False,
            )
    except Exception as error:
        reason = str(error.__cause__ or error).strip().splitlines()
        if reason and reason[0].startswith("Constraints violated"):
            raise ExportError(_violated(flat, reason[1:])) from error
        raise ExportError(
            f"torch.onnx.export cannot translate {type(flat.model).__name__}: "
            f"{reason[0] if reason else type(error).__name__}. A forward whose control flow depends on values in "
            "tensors, or that calls other libraries, has no ONNX graph: use torch.where, or move that code out of "
            "forward."
        ) from error
    if program is None:
        raise ExportError("torch.onnx.export returned nothing.")
    ranges = program.exported_program.range_constraints if program.exported_program else {}
    return program.model, {str(symbol): str(found.lower) for symbol, found in ranges.items() if found.is_singleton()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter: it prints progress and graphs, logs its failed attempts, and warns of its own internals."""

    def refuse(_: logging.LogRecord) -> bool:
        return False

    handlers = [handler for name in ("", "torch") for handler in logging.getLogger(name).handlers]
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
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
    names = flat.call.names
    said = [
        re.sub(
            r"(?:\w+ = )?L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]",
            lambda m: f"axis {m[2]} of {names[int(m[1])]!r}",
            text,
        )
        for text in (line.strip().removeprefix("- ") for line in lines if line.startswith("  - "))
    ]
    return (
        f"{type(flat.model).__name__}.forward does not take the open sizes of dynamic_shapes= as they are: "
        f"{' '.join(said)} Give sizes that are always equal one name, and leave out those that forward fixes."
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
    return dim if isinstance(dim, int) or dim is None else str(dim.value)


def _opened(model: ir.Model, flat: FlatModule, sizes: Sequence[OpenSize]) -> tuple[OpenSize, ...]:
    """Return the sizes that a graph leaves open, with the names there; refuse a graph that fixes one it should not."""
    found = []
    for size in sizes:
        dim = _dim(model, size)
        if not isinstance(dim, int) and (dim == size.name or not size.named):
            found.append(replace(size, name=str(dim)))
        elif size.required:
            raise ExportError(_fixed(flat, size, sizes, dim))
    return tuple(found)


def _fixed(flat: FlatModule, size: OpenSize, sizes: Sequence[OpenSize], dim: int | str | None) -> str:
    """Say that a size is fixed, or tied to another one."""
    call, model = flat.call, type(flat.model).__name__
    where = f"dynamic_shapes= has {size.name!r}, but axis {size.axis} of {call.names[size.place]!r} is"
    if not isinstance(dim, int):
        return f"{where} always {dim!r} in {model}.forward. Give sizes that are always equal one name."
    opened = {(other.place, other.axis) for other in sizes}
    alike = [
        f"axis {axis} of {call.names[place]!r}"
        for place, tensor in enumerate(call.tensors)
        for axis, length in enumerate(tensor.shape)
        if length == dim and (place, axis) not in opened
    ]
    hint = f"It may have to be as long as {', '.join(alike)}: open that too, by the same name. " if alike else ""
    return (
        f"{where} fixed at the sample's {dim} by {model}.forward. {hint}A layer with weights for each place, a table "
        "of that many places, a check of the size or int() of it fixes one: leave it out of dynamic_shapes=, or change "
        "forward."
    )


def _require_dynamic(model: ir.Model, flat: FlatModule, trial: Trial) -> None:
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
        if tensor.ndim and value.shape is not None and tensor.shape[0] == rows == value.shape[0]
    ]
    if fixed:
        raise ExportError(
            f"The batch of {', '.join(map(str, fixed))} is fixed at the sample's {rows} rows: "
            f"{type(flat.model).__name__}.forward turns the batch size into a Python number. Use x.shape[0] as it is "
            f"(no int(), no list of it), x.flatten(1) or x.reshape(-1, ...), and make no buffer of that size. "
            f"{_by_chance(flat)}"
        )


def _by_chance(flat: FlatModule) -> str:
    """Say which inputs were taken for batches because of their length, where that may be wrong."""
    names = [name for name, batched in zip(flat.call.names, flat.call.batched, strict=True) if batched]
    return (
        f"Or is {flat.call.batch_size} the size of something else by chance? What is as long as the first input is "
        f"taken for a batch ({', '.join(names)}): give a sample with another number of rows."
    )
