"""What a file says before it is run: whether it is a whole model, with which weights, and what it takes and gives."""

import os
import reprlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from lit_gelu.errors import ModelFileError, ModelInputError
from lit_gelu.files import is_file, is_folder, parse_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Array = np.ndarray | Tensor
else:
    Array = Any  # torch is imported by who has tensors

# Names in torch by onnxruntime's words, which are ONNX's in small letters.
_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64"} | {
    f"tensor({name})": name
    for name in ("float16", "bfloat16", "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
}


@dataclass(frozen=True)
class Port:
    """One input or output of a file."""

    name: str
    type_name: str  # onnxruntime's word for its element type, such as "tensor(float)"
    shape: tuple[int | str | None, ...]  # sizes; a name or None where any size fits

    @cached_property
    def onnx_number(self) -> int:
        """ONNX's number of the element type, one that torch has."""
        return int(onnx.TensorProto.DataType.Value(self.type_name.removeprefix("tensor(").removesuffix(")").upper()))

    @cached_property
    def dtype(self) -> "torch.dtype | None":
        """The dtype in torch, if it has one."""
        import torch

        return getattr(torch, _TYPES[self.type_name]) if self.type_name in _TYPES else None

    @cached_property
    def array_dtype(self) -> np.dtype[Any] | None:
        """The dtype in numpy; ``None`` for bfloat16, which numpy takes for float64 in a comparison."""
        name = _TYPES.get(self.type_name, "bfloat16")
        return None if name == "bfloat16" else np.dtype(name)

    def fits(self, value: object) -> bool:
        """Return whether a value is an array or dense tensor of the element type and shape."""
        if isinstance(value, np.ndarray):
            same = self.type_name not in _TYPES or (self.array_dtype is not None and value.dtype == self.array_dtype)
        elif is_tensor(value):
            dense = value.layout is sys.modules["torch"].strided and value.device.type != "meta"
            same = dense and self.dtype == value.dtype
        else:
            return False
        sizes = zip(value.shape, self.shape, strict=False)
        return same and value.ndim == len(self.shape) and all(not isinstance(b, int) or a == b for a, b in sizes)

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
        """Return the shape with numbers for names; ``None`` if a size is not known."""
        shape = [size if isinstance(size, int) else sizes.get(size or "", -1) for size in self.shape]
        return None if -1 in shape else tuple(shape)


def session_ports(session: onnxruntime.InferenceSession) -> tuple[dict[str, Port], dict[str, Port]]:
    """Return the inputs and the outputs of a session by name, in order."""
    inputs, outputs = (
        {value.name: Port(value.name, value.type, tuple(value.shape or ())) for value in values}
        for values in (session.get_inputs(), session.get_outputs())
    )
    return inputs, outputs


def is_tensor(value: object) -> "TypeGuard[Tensor]":
    """Return whether a value is a tensor of torch; nobody has one who has not imported torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def bind_names(
    names: Sequence[str], inputs: Sequence[Array | Mapping[str, Array]], named: Mapping[str, Array]
) -> dict[str, Array]:
    """Give every input its name, in the file's order; a single mapping holds inputs by name."""
    only = inputs[0] if len(inputs) == 1 else None
    if len(inputs) == len(names) and not named and not isinstance(only, Mapping):
        return dict(zip(names, inputs, strict=True))  # type: ignore[arg-type]  # these are no mappings
    if isinstance(only, Mapping):
        inputs, named = (), {**only, **named}
    in_order: dict[str, Any] = dict(zip(names, inputs, strict=False))
    unknown = [name for name in named if name not in names or name in in_order]
    missing = [name for name in names if name not in in_order and name not in named]
    if unknown or missing or len(inputs) > len(names):
        raise ModelInputError(
            f"{len(inputs)} inputs in order and {', '.join(map(str, named)) or 'none'} by name; the file takes each of "
            f"{', '.join(names)} once."
        )
    bound = {**in_order, **named}
    return {name: bound[name] for name in names}


def require_fit(port: Port, value: object, *, raw: bool = False) -> None:
    """Refuse a value that is no array or tensor of the input's element type and shape; ``raw`` files take pixels."""
    if port.fits(value):
        return
    word = _TYPES.get(port.type_name, port.type_name)
    kind = type(value).__name__
    if isinstance(value, np.ndarray) or is_tensor(value):
        where = "" if isinstance(value, np.ndarray) else f" on {value.device}, {value.layout}"
        kind = f"{kind} of {value.dtype}, {tuple(value.shape)}{where}"
    pixels = " Its preprocessing is a part of it: give raw pixels." if raw and word == "uint8" else ""
    accepted = "a dense torch tensor" if word == "bfloat16" else "a numpy array or a dense torch tensor"
    shape = ", ".join(str(size) for size in port.shape)
    raise ModelInputError(f"Input {port.name!r} is {kind}; the file takes {accepted} of {word}, ({shape}).{pixels}")


def named_sizes(ports: Mapping[str, Port], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes that names in the inputs' shapes stand for in one call; refuse a name that is two sizes."""
    sizes: dict[str, int] = {}
    for name, port in ports.items():
        for size, number in zip(port.shape, shapes[name], strict=True):
            if isinstance(size, str) and sizes.setdefault(size, number) != number:
                raise ModelInputError(
                    f"{size!r} is one size in the file, and {sizes[size]} and {number} in these inputs. Give inputs "
                    "that agree, or export the file with another name where they differ (dynamic_shapes=)."
                )
    return sizes


def random_inputs(ports: Mapping[str, Port], batch_size: int) -> "dict[str, Tensor]":
    """Return inputs in a file's shapes: normal numbers, and pixels for ``uint8``; others are refused."""
    import torch

    generator = torch.Generator().manual_seed(0)
    batch = next((port.shape[0] for port in ports.values() if port.shape), None)
    inputs = {}
    for name, port in ports.items():
        other_sizes = [size for axis, size in enumerate(port.shape) if size != batch or (axis and size is None)]
        if not all(isinstance(size, int) for size in other_sizes):
            raise ModelInputError(
                f"Input {name!r} takes {port.shape}: a size beside the batch is open. Give inputs (or input_sample=)."
            )
        shape = [size if isinstance(size, int) else batch_size for size in port.shape]
        if port.dtype == torch.uint8:
            inputs[name] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        elif port.dtype is not None and port.dtype.is_floating_point:
            inputs[name] = torch.randn(shape, generator=generator).to(port.dtype)
        else:
            raise ModelInputError(f"Input {name!r} is {port.type_name}: values cannot be made up for it, give inputs.")
    return inputs


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
    tensors = list(tensors_of(model))
    outside = [tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL]
    if path.is_symlink() and not all(is_file(path.parent / _entries(tensor).get("location", "")) for tensor in outside):
        path = path.resolve()  # a cache holds links to a model whose weights lie beside the model itself
    for tensor in outside:
        _require_weights(path, tensor)
    types = {tensor.data_type for tensor in tensors} | {value.type.tensor_type.elem_type for value in model.graph.input}
    nodes = [node for part in (model.graph, *model.functions) for node in nodes_of(part)]
    has_int8 = any(tensor.data_type == _INT8 and tensor.dims for tensor in tensors)
    return ModelFile(
        path=path,
        # The standard domain goes by the shorter of its two names.
        opsets={"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import},
        operators=dict(Counter(map(operator_name, nodes))),
        external=tuple(sorted({_entries(tensor)["location"] for tensor in outside})),
        sixteen_bit=bool({_FLOAT16, _BFLOAT16} & types),
        bfloat16=_BFLOAT16 in types,
        saturates=has_int8 and not _is_bounded(model),
    )


def parsed_file(path: Path) -> onnx.ModelProto:
    """Return the model, refused without graph or opset; weights in files of their own are not read."""
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


def graphs_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[Any]:
    """Yield a graph or local function, and then the graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from graphs_of(inner)


def operator_name(node: Any) -> str:
    """Return the operator of a node of onnx or onnxruntime, with its domain unless that is the standard one."""
    return node.op_type if node.domain in {"", "ai.onnx"} else f"{node.domain}::{node.op_type}"  # two names of it


def nodes_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield every node, those of inner graphs too."""
    for one in graphs_of(graph):
        yield from one.node


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every stored tensor: weights, and constants in attributes."""
    for graph in (each for part in (model.graph, *model.functions) for each in graphs_of(part)):
        if isinstance(graph, onnx.GraphProto):  # a function has none
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for attribute in (each for node in graph.node for each in node.attribute):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def load_tensor(tensor: onnx.TensorProto, folder: Path) -> None:
    """Read what a tensor holds from the file beside the model that it names, through links too, which onnx refuses."""
    (location,) = (entry for entry in tensor.external_data if entry.key == "location")
    place = (folder / location.value).resolve()
    location.value = place.name
    onnx.external_data_helper.load_external_data_for_tensor(tensor, str(place.parent))
    tensor.data_location = onnx.TensorProto.DEFAULT  # onnx 1.20 leaves this and the next as they were
    del tensor.external_data[:]


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
    folders = path.parent.resolve(), path.resolve().parent  # of a link, as a cache of the Hub has them, where it leads
    if not location or Path(location).is_absolute() or not any(map(target.is_relative_to, folders)):
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
