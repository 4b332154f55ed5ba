"""What a file says before onnxruntime loads it: whether it is a whole model, of which opset, with which weights."""

import os
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from lit_gelu.errors import ModelFileError
from lit_gelu.files import is_file, is_folder, parse_json

INT8_RECORD = "lit_gelu_int8"
"""The entry of a file's metadata that says how it was quantised."""

SIZES = frozenset({"Shape", "Size"})  # operators whose result is in host memory, on a GPU too
_FLOAT16, _BFLOAT16, _INT8 = onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.INT8
_RECURRENT = frozenset({"LSTM", "GRU", "com.microsoft::DynamicQuantizeLSTM"})
_LARGEST = 2 * 1024**3  # bytes: protobuf's limit; larger models keep their weights in external data
_AGAIN = "Copy it again from where it was made, or export the model again."


@dataclass(frozen=True)
class ModelFile:
    """What a model's file says."""

    path: Path
    opsets: Mapping[str, int]  # version by operator domain; the standard one is the empty text
    operators: Mapping[str, int]  # how often each occurs, by name; those of other domains as "domain::name"
    external: tuple[str, ...]  # files with its weights, relative to its folder
    sixteen_bit: bool  # whether weights or inputs are float16 or bfloat16
    bfloat16: bool
    # Whether it has int8 weights whose sums may be wrong on x86 processors without VNNI: all int8 files but those of
    # `lit_gelu.export.quantization.quantize_onnx` that say otherwise.
    saturates: bool

    @property
    def recurrent(self) -> bool:
        """Whether it has an LSTM or GRU: onnxruntime's kernels on the CPU end the process on 0 rows."""
        return not _RECURRENT.isdisjoint(self.operators)


def read_model_file(path: str | os.PathLike[str]) -> ModelFile:
    """Read what a model's file says; refuse one that is no whole model, or whose weights are not in its folder."""
    path = Path(path)
    if not is_file(path):
        kind = ": it is a folder" if is_folder(path) else ""
        raise ModelFileError(f"There is no file {str(path)!r}{kind}. Write it with lit_gelu.export.export_onnx.")
    model = parsed_file(path)
    tensors = list(_tensors(model))
    outside = [tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL]
    if path.is_symlink() and not all(is_file(path.parent / _entries(tensor).get("location", "")) for tensor in outside):
        path = path.resolve()  # a cache holds links to a model whose weights lie beside the model itself
    for tensor in outside:
        _require_weights(path, tensor)
    types = {tensor.data_type for tensor in tensors} | {value.type.tensor_type.elem_type for value in model.graph.input}
    nodes = [*nodes_of(model.graph), *(node for function in model.functions for node in function.node)]
    has_int8 = any(tensor.data_type == _INT8 and tensor.dims for tensor in tensors)
    return ModelFile(
        path=path,
        opsets={_standard(entry.domain): entry.version for entry in model.opset_import},
        operators=dict(Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes)),
        external=tuple(sorted({_entries(tensor)["location"] for tensor in outside})),
        sixteen_bit=bool({_FLOAT16, _BFLOAT16} & types),
        bfloat16=_BFLOAT16 in types,
        saturates=has_int8 and not _is_bounded(model),
    )


def parsed_file(path: Path) -> onnx.ModelProto:
    """Return the model, its graph and opset being there; weights in files of their own are not read."""
    size = path.stat().st_size
    if size > _LARGEST:
        raise ModelFileError(f"{str(path)!r} has {size} bytes; an ONNX file has at most 2 GB, with weights beside it.")
    content = path.read_bytes()
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        raise ModelFileError(
            f"{str(path)!r} is truncated, damaged, or no ONNX model (it begins with {content[:8]!r}). {_AGAIN}"
        ) from error
    if not model.HasField("graph") or not model.ir_version or not model.opset_import:
        raise ModelFileError(
            f"{str(path)!r} is no whole ONNX model: it lacks a graph, a format version or an operator-set version (it "
            f"begins with {content[:8]!r}). {_AGAIN}"
        )
    return model


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph, and then those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from graphs_of(inner)


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield every node, those of inner graphs too."""
    for one in graphs_of(graph):
        yield from one.node


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every stored tensor: weights, and constants in attributes."""
    for graph in graphs_of(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in [*nodes_of(model.graph), *(node for function in model.functions for node in function.node)]:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _standard(domain: str) -> str:
    """Return an operator domain, the standard one by the shorter of its two names."""
    return "" if domain == "ai.onnx" else domain


def _is_bounded(model: onnx.ModelProto) -> bool:
    """Return whether the record of a quantisation says that no sum of products leaves 16 bits."""
    record = next((entry.value for entry in model.metadata_props if entry.key == INT8_RECORD), "{}")
    try:
        return parse_json(record)["bounded"] is True
    except (ValueError, TypeError, KeyError):
        return False


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _require_weights(path: Path, tensor: onnx.TensorProto) -> None:
    """Refuse weights beside a file that are missing, too short, or outside its folder."""
    entries = _entries(tensor)
    location = entries.get("location", "")
    where = f"{str(path)!r} keeps the weights {tensor.name!r} in {reprlib.repr(location)}"
    target = Path() if "\0" in location else (path.parent / location).resolve()  # follows links, which may lead out
    if not location or Path(location).is_absolute() or not target.is_relative_to(path.parent.resolve()):
        raise ModelFileError(
            f"{where}, outside its own folder, by which a model from elsewhere could read any file. Put the weights "
            "beside the model and correct the location."
        )
    if not is_file(target):
        raise ModelFileError(f"{where}, which is not there. Copy that file too, into the same folder.")
    numbers = [entries.get(key, "0") for key in ("offset", "length")]
    if not all(text.isascii() and text.isdigit() and len(text) < 20 for text in numbers):  # of an int64
        raise ModelFileError(f"{where}, at offset and length {reprlib.repr(numbers)}, which are no numbers. {_AGAIN}")
    if target.stat().st_size < sum(map(int, numbers)):
        raise ModelFileError(f"{where}, which has {target.stat().st_size} bytes and should have more. Copy it again.")
