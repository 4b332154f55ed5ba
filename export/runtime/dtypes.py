"""The same element types in ONNX's, torch's and numpy's words."""

import numpy as np
import torch
from onnx import TensorProto

# onnxruntime's word: ONNX's number, torch's dtype, numpy's dtype (numpy has no bfloat16)
_TYPES: dict[str, tuple[int, torch.dtype, type[np.generic] | None]] = {
    "tensor(float)": (TensorProto.FLOAT, torch.float32, np.float32),
    "tensor(double)": (TensorProto.DOUBLE, torch.float64, np.float64),
    "tensor(float16)": (TensorProto.FLOAT16, torch.float16, np.float16),
    "tensor(bfloat16)": (TensorProto.BFLOAT16, torch.bfloat16, None),
    "tensor(int64)": (TensorProto.INT64, torch.int64, np.int64),
    "tensor(int32)": (TensorProto.INT32, torch.int32, np.int32),
    "tensor(int16)": (TensorProto.INT16, torch.int16, np.int16),
    "tensor(int8)": (TensorProto.INT8, torch.int8, np.int8),
    "tensor(uint8)": (TensorProto.UINT8, torch.uint8, np.uint8),
    "tensor(bool)": (TensorProto.BOOL, torch.bool, np.bool_),
}


def torch_dtype(type_name: str) -> torch.dtype | None:
    """Return torch's dtype.

    Args:
        type_name: onnxruntime's word.

    Returns:
        The dtype; ``None`` if torch has none.

    Example:
        >>> torch_dtype("tensor(bfloat16)")
        torch.bfloat16
    """
    return _TYPES[type_name][1] if type_name in _TYPES else None


def numpy_dtype(type_name: str) -> type[np.generic] | None:
    """Return numpy's dtype.

    Args:
        type_name: onnxruntime's word.

    Returns:
        The dtype; ``None`` if numpy has none.

    Example:
        >>> numpy_dtype("tensor(float)")
        <class 'numpy.float32'>
    """
    return _TYPES[type_name][2] if type_name in _TYPES else None


def onnx_number(type_name: str) -> int:
    """Return ONNX's number of an element type.

    Args:
        type_name: onnxruntime's word, one that `torch_dtype` knows.

    Returns:
        The number.

    Example:
        >>> onnx_number("tensor(bfloat16)")
        16
    """
    return int(_TYPES[type_name][0])
