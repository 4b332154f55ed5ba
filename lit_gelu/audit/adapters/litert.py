"""TensorFlow Lite's flatbuffers in LiteRT."""

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from lit_gelu.audit.adapters.runtime_file import Array, InputPort, RuntimeFile, is_activation
from lit_gelu.extras import need

_SUBGRAPHS, _OPERATORS, _OPTIONS_TYPE, _OPTIONS, _APPROXIMATE = 2, 3, 3, 4, 0  # fields in TensorFlow Lite's schema
_GELU_OPTIONS = 116  # a kind of options


def opened(path: Path) -> RuntimeFile:
    """Open a ``.tflite`` file, with XNNPACK as LiteRT takes it by default; its first subgraph is run."""
    litert = need("ai_edge_litert.interpreter", extra="litert", what=f"Opening {path.name}")
    interpreter = litert.Interpreter(model_path=str(path), num_threads=1)
    interpreter.allocate_tensors()  # the buffer is checked now, and may be read
    details = interpreter.get_input_details()
    ports = []
    for row in details:
        sizes = tuple(None if size < 0 else int(size) for size in row["shape_signature"])
        ports.append(InputPort(row["name"], sizes, np.dtype(row["dtype"]).name))

    def execute(arrays: Sequence[Array]) -> list[Array]:
        for row, array in zip(details, arrays, strict=True):
            interpreter.resize_tensor_input(row["index"], array.shape, strict=True)
        interpreter.allocate_tensors()
        for row, array in zip(details, arrays, strict=True):
            interpreter.set_tensor(row["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(row["index"]).copy() for row in interpreter.get_output_details()]

    def activations() -> list[tuple[str, str]]:
        names = [row["op_name"] for row in interpreter._get_ops_details()]  # in the file's order, delegates at the end
        forms = dict(enumerate(_asks_for_tanh(path.read_bytes())))
        texts = [f"{name} approximate={forms[i]}" if name == "GELU" else name for i, name in enumerate(names)]
        return [(str(i), text) for i, text in enumerate(texts) if is_activation(names[i])]

    return RuntimeFile(path, f"ai-edge-litert {version('ai-edge-litert')}", tuple(ports), execute, activations)


def _asks_for_tanh(content: bytes) -> Iterator[bool]:
    """Tell of every operator whether it has GELU's option ``approximate``."""
    flatbuffers = need("flatbuffers", extra="litert", what="Reading options of GELU")
    root = flatbuffers.table.Table(content, flatbuffers.encode.Get(flatbuffers.packer.uoffset, content, 0))
    for operator in _tables(next(_tables(root, _SUBGRAPHS)), _OPERATORS):
        kind, options = (operator.Offset(4 + 2 * field) for field in (_OPTIONS_TYPE, _OPTIONS))
        if kind and options and content[operator.Pos + kind] == _GELU_OPTIONS:
            table = type(root)(content, operator.Indirect(operator.Pos + options))
            place = table.Offset(4 + 2 * _APPROXIMATE)
            yield bool(place and content[table.Pos + place])  # what is left out is false
        else:
            yield False


def _tables(table: Any, field: int) -> Iterator[Any]:
    """Give the tables that a field lists."""
    offset = table.Offset(4 + 2 * field)  # behind the sizes of the table and of its list of fields
    for row in range(table.VectorLen(offset) if offset else 0):
        yield type(table)(table.Bytes, table.Indirect(table.Vector(offset) + 4 * row))
