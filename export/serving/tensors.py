"""A file's inputs and outputs in Triton's words: data types, and sizes without those that only a call knows."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from lit_gelu.export.errors import ModelFileError

DYNAMIC = -1
_NAMES = re.compile(r"[^\W\d]\w*")  # in a size's expression

# ONNX's element types, by Triton's names (``DataType`` in its model_config.proto), which its onnxruntime backend takes
# (``ConvertFromOnnxDataType`` in its onnxruntime_utils.cc): bfloat16, which Triton has, is not among them.
_DATA_TYPES: dict[int, str] = {
    TensorProto.BOOL: "TYPE_BOOL",
    TensorProto.UINT8: "TYPE_UINT8",
    TensorProto.UINT16: "TYPE_UINT16",
    TensorProto.UINT32: "TYPE_UINT32",
    TensorProto.UINT64: "TYPE_UINT64",
    TensorProto.INT8: "TYPE_INT8",
    TensorProto.INT16: "TYPE_INT16",
    TensorProto.INT32: "TYPE_INT32",
    TensorProto.INT64: "TYPE_INT64",
    TensorProto.FLOAT16: "TYPE_FP16",
    TensorProto.FLOAT: "TYPE_FP32",
    TensorProto.DOUBLE: "TYPE_FP64",
    TensorProto.STRING: "TYPE_STRING",
}


@dataclass(frozen=True)
class TritonTensor:
    """One input or output."""

    name: str
    data_type: str  # Triton's name of its element type
    sizes: tuple[int, ...]  # all sizes, `DYNAMIC` where any fits
    rows: str  # the name of its first size, if that is dynamic and has one; else empty
    inner: tuple[frozenset[str], ...] = ()  # of each size behind the first: its text, and the names in it


def inputs_and_outputs(model: onnx.ModelProto, file: str) -> tuple[tuple[TritonTensor, ...], tuple[TritonTensor, ...]]:
    """Return what a model takes and gives."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    given = tuple(_tensor(value, file) for value in inputs)
    return given, tuple(_tensor(value, file) for value in model.graph.output)


def batch_name(tensors: Iterable[TritonTensor]) -> str:
    """Return the name of the batch: the dynamic first size that all tensors share, and that no other size contains."""
    # Where another size contains it, rows see each other, and a request would get the rows of others among its own.
    tensors = tuple(tensors)
    name = first_name(tensors)
    return "" if inner_places(tensors, name) else name


def first_name(tensors: Iterable[TritonTensor]) -> str:
    """Return the name of the dynamic first size that all tensors share, empty if there is none."""
    names = {tensor.rows for tensor in tensors}
    return names.pop() if len(names) == 1 else ""


def inner_places(tensors: Iterable[TritonTensor], name: str) -> list[str]:
    """Return the sizes behind the first that contain a name, in words."""
    return [
        f"axis {axis} of {tensor.name!r}"
        for tensor in tensors
        for axis, names in enumerate(tensor.inner, 1)
        if name and name in names
    ]


def _tensor(value: onnx.ValueInfoProto, file: str) -> TritonTensor:
    """Return one input or output."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise ModelFileError(
            f"{value.name!r} of {file} is no tensor whose sizes are written down, and a configuration needs them. "
            "onnx.shape_inference.infer_shapes may find them; files of lit_gelu.export.export_onnx have them."
        )
    if kind.elem_type not in _DATA_TYPES:
        raise ModelFileError(
            f"{value.name!r} of {file} is {TensorProto.DataType.Name(kind.elem_type)}, which Triton's onnxruntime "
            f"backend does not take. It takes {', '.join(_DATA_TYPES.values())}: convert it inside the model, as "
            "export_onnx(dtype='bf16', io_dtype='fp32') does."
        )
    sizes = tuple(size.dim_value if size.HasField("dim_value") else DYNAMIC for size in kind.shape.dim)
    if min(sizes, default=0) < DYNAMIC:
        raise ModelFileError(
            f"{value.name!r} of {file} has the sizes {list(sizes)}, and none can be below 0 ({DYNAMIC} is any). The "
            "file is damaged: copy it again from where it was made, or export the model again."
        )
    rows = kind.shape.dim[0].dim_param if sizes[:1] == (DYNAMIC,) else ""
    inner = tuple(frozenset([size.dim_param, *_NAMES.findall(size.dim_param)]) for size in kind.shape.dim[1:])
    return TritonTensor(value.name, _DATA_TYPES[kind.elem_type], sizes, rows, inner)
