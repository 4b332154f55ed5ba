"""The inputs and outputs of a file: names, element types and shapes, what fits them, and values made up for them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import onnxruntime

from lit_gelu.errors import ModelInputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Array = np.ndarray | Tensor
else:
    Array = Any  # torch is imported by who has tensors

# onnxruntime's word: ONNX's number, torch's name, numpy's dtype (numpy has no bfloat16)
_TYPES: dict[str, tuple[int, str, type[np.generic] | None]] = {
    "tensor(float)": (1, "float32", np.float32),
    "tensor(double)": (11, "float64", np.float64),
    "tensor(float16)": (10, "float16", np.float16),
    "tensor(bfloat16)": (16, "bfloat16", None),
    "tensor(int64)": (7, "int64", np.int64),
    "tensor(int32)": (6, "int32", np.int32),
    "tensor(int16)": (5, "int16", np.int16),
    "tensor(int8)": (3, "int8", np.int8),
    "tensor(uint8)": (2, "uint8", np.uint8),
    "tensor(bool)": (9, "bool", np.bool_),
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
        return _TYPES[self.type_name][0]

    @cached_property
    def dtype(self) -> "torch.dtype | None":
        """The dtype in torch, if it has one."""
        import torch

        return getattr(torch, _TYPES[self.type_name][1]) if self.type_name in _TYPES else None

    @cached_property
    def array_dtype(self) -> np.dtype[Any] | None:
        """The dtype in numpy, if it has one."""
        kind = _TYPES[self.type_name][2] if self.type_name in _TYPES else None
        return None if kind is None else np.dtype(kind)

    def fits(self, value: object) -> bool:
        """Return whether a value is an array or dense tensor of the element type and shape."""
        if isinstance(value, np.ndarray):
            same = value.dtype == self.array_dtype or self.type_name not in _TYPES
        elif is_tensor(value):
            dense = value.layout is sys.modules["torch"].strided and value.device.type != "meta"
            same = dense and self.dtype in (None, value.dtype)
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
    if isinstance(only, Mapping):
        inputs, named = (), {**only, **named}
    in_order: dict[str, Any] = dict(zip(names, inputs, strict=False))
    unknown = [name for name in named if name not in names or name in in_order]
    missing = [name for name in names if name not in in_order and name not in named]
    if unknown or missing or len(inputs) > len(names):
        raise ModelInputError(
            f"{len(inputs)} inputs were given in order and {', '.join(map(str, named)) or 'none'} by name; the file "
            f"takes each of {', '.join(names)} once."
        )
    bound = {**in_order, **named}
    return {name: bound[name] for name in names}


def require_fit(port: Port, value: object, *, raw: bool = False) -> None:
    """Refuse a value that is no array or tensor of the input's element type and shape; ``raw`` files take pixels."""
    if port.fits(value):
        return
    word = _TYPES[port.type_name][1] if port.type_name in _TYPES else port.type_name
    if isinstance(value, np.ndarray):
        order = "" if value.dtype.isnative else " in another byte order"
        given = f"an array of {value.dtype.name}{order}, {value.shape}"
    elif is_tensor(value):
        layout = "" if value.layout is sys.modules["torch"].strided else f"{value.layout}, "
        given = f"a tensor of {str(value.dtype).removeprefix('torch.')}, {layout}{tuple(value.shape)} on {value.device}"
    else:
        given = type(value).__name__
    pixels = " Its preprocessing is a part of it: give raw pixels." if raw and word == "uint8" else ""
    accepted = "a dense torch tensor" if word == "bfloat16" else "a numpy array or a dense torch tensor"
    shape = ", ".join(str(size) for size in port.shape)
    raise ModelInputError(f"Input {port.name!r} is {given}; the file takes {accepted} of {word}, ({shape}).{pixels}")


def named_sizes(ports: Mapping[str, Port], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes that names in the inputs' shapes stand for in one call; refuse a name that is two sizes."""
    sizes: dict[str, int] = {}
    for name, port in ports.items():
        for size, number in zip(port.shape, shapes[name], strict=True):
            if isinstance(size, str) and sizes.setdefault(size, number) != number:
                raise ModelInputError(
                    f"{size!r} is one size in the file, and {sizes[size]} and {number} in these inputs: "
                    f"{', '.join(f'{key} {tuple(shape)}' for key, shape in shapes.items())}. Give inputs that agree, "
                    "or export the file with another name where they differ (dynamic_shapes=)."
                )
    return sizes


def made_inputs(ports: Mapping[str, Port], batch_size: int, seed: int = 0) -> "dict[str, Tensor]":
    """Return inputs in a file's shapes: normal numbers, and pixels for ``uint8``; others have bounds not told."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    batch = next((port.shape[0] for port in ports.values() if port.shape), None)
    inputs = {}
    for name, port in ports.items():
        beside = [size for axis, size in enumerate(port.shape) if size != batch or (axis and size is None)]
        if not all(isinstance(size, int) for size in beside):
            raise ModelInputError(
                f"Input {name!r} takes {port.shape}: a size beside the batch is open, and what is measured depends on "
                "it. Give inputs= of the sizes that you will use."
            )
        shape = [size if isinstance(size, int) else batch_size for size in port.shape]
        if port.dtype == torch.uint8:
            inputs[name] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        elif port.dtype is not None and port.dtype.is_floating_point:
            inputs[name] = torch.randn(shape, generator=generator).to(port.dtype)
        else:
            raise ModelInputError(f"Input {name!r} is {port.type_name}: values cannot be made up for it, give inputs.")
    return inputs
