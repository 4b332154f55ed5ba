"""From a module to an ONNX graph: torch's exporter, with a batch that is really dynamic and without its chatter."""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator

import onnx_ir as ir
import torch

from lit_gelu.export.errors import ExportError
from lit_gelu.export.inputs import SCOPE, FlatModule
from lit_gelu.export.trial import Trial, random_message

BATCH = "batch"
_RANDOM = frozenset({
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
})
_INPUTS_OF_LIVE_DROPOUT = 3  # data, ratio, training_mode; in evaluation the exporter writes none of it


def trace(flat: FlatModule, trial: Trial, opset: int) -> ir.Model:
    """Export a module to a graph whose every batch dimension is called ``batch``."""
    model = _export(flat, trial, opset)
    _require_deterministic(model, flat)
    _name_values(model)
    _name_batch(model, flat)
    _require_dynamic(model, flat, trial)
    for name in [name for name in model.graph.initializers if name.startswith(f"{SCOPE}.")]:
        plain = name.removeprefix(f"{SCOPE}.")
        if plain not in model.graph.initializers:  # a module may have a child called as the preprocessing is here
            model.graph.initializers[name].name = plain
    return model


def _export(flat: FlatModule, trial: Trial, opset: int) -> ir.Model:
    """Call torch's exporter."""
    batch = torch.export.Dim(BATCH)  # named, not a hint: a hint is dropped in silence where the module fixes the size
    shapes = tuple({0: batch} if batched else None for batched in flat.call.batched)
    try:
        with _quiet():
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
        reason = str(error.__cause__ or error).strip().splitlines()
        raise ExportError(
            f"torch.onnx.export cannot translate {type(flat.model).__name__}: "
            f"{reason[0] if reason else type(error).__name__}. A forward whose control flow depends on values in "
            "tensors, or that calls other libraries, has no ONNX graph: use torch.where, or move that code out of "
            "forward."
        ) from error
    if program is None:
        raise ExportError("torch.onnx.export returned nothing.")
    model: ir.Model = program.model
    return model


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


def _name_batch(model: ir.Model, flat: FlatModule) -> None:
    """Call the batch dimension ``batch`` in every shape; torch calls it s77 where several inputs share it."""
    first = next(i for i, batched in enumerate(flat.call.batched) if batched)
    shape = model.graph.inputs[first].shape
    symbol = None if shape is None or isinstance(shape[0], int) else shape[0].value
    if symbol in {None, BATCH}:
        return
    pattern = re.compile(rf"\b{re.escape(str(symbol))}\b")
    values = [
        *model.graph.inputs,
        *(v for node in ir.traversal.RecursiveGraphIterator(model.graph) for v in node.outputs),
    ]
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape([dim if isinstance(dim, int) else _renamed(dim, pattern) for dim in value.shape])


def _renamed(dim: ir.SymbolicDim, pattern: re.Pattern[str]) -> ir.SymbolicDim:
    """Return a dimension with the symbol renamed, within expressions too."""
    return ir.SymbolicDim(None if dim.value is None else pattern.sub(BATCH, str(dim.value)))


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
