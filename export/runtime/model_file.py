"""What a file says before onnxruntime loads it: whether it is a model, of which opset, and where its data are."""

import os
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from lit_gelu.export.errors import ModelFileError
from lit_gelu.export.runtime.empty_inputs import never_empty_inputs
from lit_gelu.export.runtime.onnx_proto import BFLOAT16, EXTERNAL, FLOAT16, INT8, parsed_model
from lit_gelu.files import is_file, is_folder, parse_json

if TYPE_CHECKING:
    import onnx

INT8_RECORD = "lit_gelu_int8"
"""The entry of a file's metadata that says how it was quantised."""

_SIXTEEN_BIT = {FLOAT16, BFLOAT16}
SIZES = frozenset({"Shape", "Size"})  # operators whose kernels on the GPU leave their result in host memory
_DIGITS = 19  # of the largest number of bytes that ONNX has, an int64
_LARGEST = 2 * 1024**3  # bytes: protobuf's limit; larger models keep their weights in external data


@dataclass(frozen=True)
class ModelFile:
    """What a model's file says."""

    path: Path
    opsets: Mapping[str, int]  # version by operator domain; the standard one is the empty text
    operators: Mapping[str, int]  # how often each occurs, by name; those of other domains as "domain::name"
    sixteen_bit: bool  # whether weights or inputs are float16 or bfloat16
    external: tuple[str, ...]  # files with its weights, relative to its folder
    # Whether it has int8 weights whose sums may be wrong on x86 processors without VNNI: all int8 files but those of
    # `lit_gelu.export.quantization.quantize_onnx` that say otherwise.
    saturates: bool = False
    wants_nhwc: bool = False  # whether it was exported with layout="nhwc"
    bfloat16: bool = False  # whether that is the type of weights or inputs
    never_empty: frozenset[str] = frozenset()  # inputs on which onnxruntime's CPU ends the process if they are empty

    @property
    def grants_nhwc(self) -> bool:
        """Whether its wish for NHWC is obeyed: in such sessions sizes are computed on the GPU, and copied."""
        return self.wants_nhwc and not SIZES & self.operators.keys()


def read_model_file(path: str | os.PathLike[str]) -> ModelFile:
    """Read what a model's file says; refuse one that is no whole model, or whose data are not in its folder."""
    path = Path(path)
    if not is_file(path):
        kind = ": it is a folder" if is_folder(path) else ""
        raise ModelFileError(f"There is no file {str(path)!r}{kind}. Write it with lit_gelu.export.export_onnx.")
    if path.suffix == ".ort":
        raise ModelFileError(
            f"{str(path)!r} is in onnxruntime's own format (.ort). Give the ONNX file it was made from."
        )
    model = parsed_file(path)
    tensors = list(_tensors(model))
    path = _beside_its_data(path, tensors)
    external = {location for tensor in tensors if (location := _checked_location(path, tensor)) is not None}
    types = {tensor.data_type for tensor in tensors} | {value.type.tensor_type.elem_type for value in model.graph.input}
    return ModelFile(
        path=path,
        opsets={
            entry.domain.replace("ai.onnx", "") if entry.domain == "ai.onnx" else entry.domain: entry.version
            for entry in model.opset_import
        },
        operators=dict(
            Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes_of(model.graph))
        ),
        sixteen_bit=bool(_SIXTEEN_BIT & types),
        bfloat16=BFLOAT16 in types,
        external=tuple(sorted(external)),
        saturates=any(tensor.data_type == INT8 and tensor.dims for tensor in tensors) and not _is_bounded(model),
        never_empty=never_empty_inputs(model),
        wants_nhwc=any((entry.key, entry.value) == ("lit_gelu.layout", "nhwc") for entry in model.metadata_props),
    )


def _is_bounded(model: "onnx.ModelProto") -> bool:
    """Return whether the record of a quantisation says that no sum of products leaves 16 bits."""
    for entry in model.metadata_props:
        if entry.key == INT8_RECORD:
            try:
                return parse_json(entry.value)["bounded"] is True
            except (ValueError, TypeError, KeyError):
                return False
    return False


def parsed_file(path: Path) -> "onnx.ModelProto":
    """Return the model, its graph and opset being there."""
    size = path.stat().st_size
    if size == 0:
        raise ModelFileError(f"{str(path)!r} is empty. Export the model again.")
    if size > _LARGEST:
        raise ModelFileError(f"{str(path)!r} has {size} bytes; an ONNX file has at most 2 GB, with weights beside it.")
    try:
        model: onnx.ModelProto = parsed_model(path.read_bytes())
    except DecodeError as error:
        raise ModelFileError(
            f"{str(path)!r} is truncated, damaged, or no ONNX model (it begins with {_beginning(path)}). Copy it again "
            "from where it was made, or export the model again."
        ) from error
    if not model.HasField("graph") or not model.ir_version or not model.opset_import:
        lacking = "no graph" if not model.HasField("graph") else "no format version or no operator-set version"
        raise ModelFileError(
            f"{str(path)!r} is no whole ONNX model: it has {lacking} (it begins with {_beginning(path)}). Copy it "
            "again from where it was made, or export the model again."
        )
    return model


def _beginning(path: Path) -> str:
    """Return the first bytes for a message."""
    with path.open("rb") as file:
        return repr(file.read(8))


def graphs_of(graph: "onnx.GraphProto") -> Iterator["onnx.GraphProto"]:
    """Yield a graph, and then those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from graphs_of(inner)


def nodes_of(graph: "onnx.GraphProto") -> Iterator["onnx.NodeProto"]:
    """Yield every node, those of inner graphs too."""
    for one in graphs_of(graph):
        yield from one.node


def _tensors(model: "onnx.ModelProto") -> Iterator["onnx.TensorProto"]:
    """Yield every stored tensor: weights, and constants in attributes."""
    for graph in graphs_of(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    nodes = [*nodes_of(model.graph), *(node for function in model.functions for node in function.node)]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _beside_its_data(path: Path, tensors: Iterable["onnx.TensorProto"]) -> Path:
    """Return the path, or the file that it is a link to, if the weights of their own are not where the link is."""
    # A cache may hold links to both, the weights under the name that the model gives them.
    if not path.is_symlink():
        return path
    entries = [entry for t in tensors if t.data_location == EXTERNAL for entry in t.external_data]
    names = {entry.value for entry in entries if entry.key == "location"}
    missing = [name for name in names if "\0" not in name and not is_file(path.parent / name)]
    return path.resolve() if missing else path


def _checked_location(path: Path, tensor: "onnx.TensorProto") -> str | None:
    """Return where a tensor's data are, if not in the file: inside its folder, and long enough."""
    if tensor.data_location != EXTERNAL:
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = str(entries.get("location", ""))
    folder = path.parent.resolve()
    if "\0" in location:
        raise ModelFileError(
            f"{str(path)!r} wants the weights {tensor.name!r} from {reprlib.repr(location)}, which is no name of a "
            "file: it holds NUL. The file is damaged: copy it again from where it was made."
        )
    target = (folder / location).resolve()  # follows links, which may lead out too
    if not location or Path(location).is_absolute() or not target.is_relative_to(folder):
        raise ModelFileError(
            f"{str(path)!r} wants the weights {tensor.name!r} from {location!r}, outside its own folder, which a model "
            "from elsewhere could use to read any file. Put the data beside the model and correct the location."
        )
    if not is_file(target):
        raise ModelFileError(
            f"{str(path)!r} keeps the weights {tensor.name!r} in {location!r}, which is not there. Copy that file too, "
            "into the same folder."
        )
    end = sum(_checked_number(path, tensor, key, str(entries.get(key, "0"))) for key in ("offset", "length"))
    if target.stat().st_size < end:
        raise ModelFileError(
            f"{location!r}, which holds the weights of {str(path)!r}, has {target.stat().st_size} bytes; "
            f"{tensor.name!r} ends at byte {end}. It is truncated: copy it again."
        )
    return location


def _checked_number(path: Path, tensor: "onnx.TensorProto", key: str, text: str) -> int:
    """Return an offset or a length."""
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS:
        return int(text)
    raise ModelFileError(
        f"{str(path)!r} says {key}={reprlib.repr(text)} of the external data of {tensor.name!r}: a number of bytes is "
        "meant. The file is damaged: copy it again from where it was made."
    )
