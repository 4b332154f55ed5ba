"""From a module to an ONNX graph: torch's exporter, with a batch that is really dynamic and without its chatter."""

import contextlib
import functools
import importlib
import io
import logging
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch

from lit_gelu.errors import ExportError
from lit_gelu.export.copying import Trial, random_message
from lit_gelu.export.inputs import SCOPE, Call, FlatModule, OpenSize
from lit_gelu.export.runtime.session import captured_stdout
from lit_gelu.export.shape_arithmetic import fold_shape_arithmetic

BOUNDS = "bounds"  # where a traced graph keeps them, among what is not written to the file
_RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
_INPUTS_OF_LIVE_DROPOUT = 3  # data, ratio, training_mode; in evaluation the exporter writes none of it
_one_at_a_time = threading.RLock()


def trace(flat: FlatModule, trial: Trial, opset: int, sizes: Sequence[OpenSize]) -> ir.Model:
    """Export a module to a graph whose open sizes have their names everywhere, and what they may be in `BOUNDS`."""
    shapes = tuple(
        {size.axis: size.dim for size in sizes if size.place == place} or None for place in range(len(flat.call.names))
    )
    try:
        with _one_at_a_time, _translations_read_once(), _quiet():
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
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ExportError(
            f"torch.onnx.export cannot translate {type(flat.model).__name__}: {str(cause).strip() or type(cause)}. "
            "Write that part of forward in other operators of torch (torch.where where control flow depends on values "
            "in tensors), or move it out of forward. Open sizes that are always equal need one name; leave out of "
            "dynamic_shapes= those that forward fixes."
        ) from error
    if program is None:
        raise ExportError("torch.onnx.export returned nothing.")
    model, fixed = program.model, {}
    if (exported := program.exported_program) is not None:
        model.meta[BOUNDS] = _bounds(exported, sizes)
        ranges = exported.range_constraints
        fixed = {str(symbol): str(span.lower) for symbol, span in ranges.items() if span.is_singleton()}
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


@contextlib.contextmanager
def _translations_read_once() -> Iterator[None]:
    """Let torch's exporter read the source of its translations only once a process, not in each call."""
    # ``torch.onnx.export`` has some 500 of them, functions of onnxscript, and parses each anew: two thirds of the time
    # of a small module's export. What it reads of a function depends on the function alone. None of these names is
    # documented (torch 2.11 to 2.15, onnxscript 0.6 to 0.7): another release may not have them, and exports as it does.
    with contextlib.ExitStack() as stack:
        for owner, name, kept in _kept_translations():
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, kept)
        yield


@functools.cache
def _kept_translations() -> tuple[tuple[Any, str, Any], ...]:
    """Return what reads a translation: where it stands, its name, and the same with its results kept."""
    kept: list[tuple[Any, str, Any]] = []
    with contextlib.suppress(ImportError):
        traced = getattr(importlib.import_module("onnxscript.values"), "TracedOnnxFunction", None)
        parsed = vars(traced).get("function_ir") if traced else None
        if isinstance(parsed, property) and parsed.fget:
            kept.append((traced, "function_ir", property(functools.cache(parsed.fget))))
    with contextlib.suppress(ImportError):
        schemas = importlib.import_module("torch.onnx._internal.exporter._schemas")
        if signature := getattr(schemas, "op_signature_from_function", None):
            kept.append((schemas, "op_signature_from_function", functools.cache(signature)))
    return tuple(kept)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter: it prints progress and graphs, logs its failed attempts, and warns of its own internals."""
    refuse = logging.Filter("no logger's name")  # lets nothing pass
    handlers = [handler for name in ("", "torch") for handler in logging.getLogger(name).handlers]
    with warnings.catch_warnings(), captured_stdout(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for handler in handlers:
            handler.addFilter(refuse)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(refuse)


def _bounds(program: torch.export.ExportedProgram, sizes: Sequence[OpenSize]) -> dict[str, tuple[int, int | None]]:
    """Return within which sizes a graph is what forward computes, by their names; ``None`` for no upper end."""
    # torch.export.export refuses a Dim that is wider than that. torch.onnx.export says nothing.
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    bounds = {}
    for size in sizes:
        tensor = values[program.graph_signature.user_inputs[size.place]]
        symbol = getattr(getattr(tensor.shape[size.axis], "node", None), "expr", None)
        span = program.range_constraints.get(symbol)
        if span is not None:
            bounds[size.name] = (int(span.lower), int(span.upper) if span.upper.is_Integer else None)
    return bounds


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
    ports = (*model.graph.inputs, *model.graph.outputs)
    taken, keep = {value.name for value in ports}, {id(value) for value in ports}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.outputs:
            if value.name in taken and id(value) not in keep:
                value.name = f"{value.name}.value"


def _name_sizes(model: ir.Model, sizes: Sequence[OpenSize], names: dict[str, str]) -> None:
    """Give open sizes their names in every shape, and those of one value that, by torch's names of them."""
    # torch calls a size s77 where several inputs share it, and one that a Dim.AUTO left open though it is fixed.
    for size in sizes:
        symbol = _dim(model, size)
        if isinstance(symbol, str) and symbol.isidentifier():
            names.setdefault(symbol, size.name)
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    for value in [*model.graph.inputs, *(output for node in nodes for output in node.outputs)]:
        if value.shape is not None:
            value.shape = ir.Shape([dim if isinstance(dim, int) else _renamed(dim, names) for dim in value.shape])


def _renamed(dim: ir.SymbolicDim, names: dict[str, str]) -> ir.SymbolicDim | int:
    """Return a dimension with symbols renamed, within expressions too."""
    if dim.value is None:
        return ir.SymbolicDim(None)
    name = re.sub(r"\b[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), str(dim.value))
    return int(name) if name.isdecimal() else ir.SymbolicDim(name)


def _dim(model: ir.Model, size: OpenSize) -> int | str | None:
    """Return what a graph has at the place of a size: its name, or a number if it is fixed."""
    shape = model.graph.inputs[size.place].shape
    dim = None if shape is None else shape[size.axis]
    return dim.value if isinstance(dim, ir.SymbolicDim) else dim


def _require_dynamic(model: ir.Model, flat: FlatModule, trial: Trial, sizes: Sequence[OpenSize]) -> None:
    """Refuse a graph whose batch is fixed at the sample's size."""
    rows, batch = trial.tensors[0].shape[0], sizes[0].name
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
        and batch not in {str(dim.value) for dim in value.shape[1:] if isinstance(dim, ir.SymbolicDim)}
    ]
    if not fixed:
        return
    others = {name: {axis: batch} for name, axis in _as_long(flat.call, flat.call.batch_size, sizes)}
    elsewhere = f"If axes of other inputs are the batch too, name them so: dynamic_shapes={others}. " if others else ""
    raise ExportError(
        f"The batch of {', '.join(map(str, fixed))} is fixed at the sample's {rows} rows: "
        f"{type(flat.model).__name__}.forward turns the batch size into a Python number. Use x.shape[0] as it is "
        f"(no int(), no list of it), x.flatten(1) or x.reshape(-1, ...), and make no buffer of that size. {elsewhere}"
        f"Inputs that are as long as the first one are taken for a batch: if {flat.call.batch_size} is the size of "
        "something else by chance, give a sample with another number of rows."
    )


def _require_open(model: ir.Model, flat: FlatModule, sizes: Sequence[OpenSize]) -> None:
    """Refuse a graph in which a size that should be open is fixed, or tied to another one."""
    for size in sizes:
        dim = _dim(model, size)
        is_open = not isinstance(dim, int) and (dim == size.name or not size.named)
        if is_open or not size.required:
            continue
        where = f"dynamic_shapes= has {size.name!r}, but axis {size.axis} of {flat.call.names[size.place]!r} is"
        if not isinstance(dim, int):
            raise ExportError(f"{where} always {dim!r} in forward. Give sizes that are always equal one name.")
        alike = " or ".join(f"axis {axis} of {name!r}" for name, axis in _as_long(flat.call, dim, sizes))
        hint = f"If that is as long as {alike}, open both by one name. " if alike else ""
        raise ExportError(
            f"{where} fixed at the sample's {dim} by {type(flat.model).__name__}.forward. {hint}Weights for each "
            "place, a table of them, a check of the size or int() of it fix one: leave it out, or change forward."
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
