"""The inputs and outputs of a file: names, element types and shapes, what fits them, and values made up for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, cast

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto
from torch import Tensor

from lit_gelu.export.errors import ModelInputError

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


Array = np.ndarray | Tensor


@dataclass(frozen=True)
class Port:
    """One input or output of a file.

    Args:
        name: Its name.
        type_name: onnxruntime's word for its element type, such as ``tensor(float)``.
        shape: Sizes; a name or ``None`` where any size fits.
    """

    name: str
    type_name: str
    shape: tuple[int | str | None, ...]

    @cached_property
    def dtype(self) -> torch.dtype | None:
        """The dtype in torch, if it has one."""
        return torch_dtype(self.type_name)

    @cached_property
    def array_dtype(self) -> np.dtype[Any] | None:
        """The dtype in numpy, if it has one."""
        kind = numpy_dtype(self.type_name)
        return None if kind is None else np.dtype(kind)

    @cached_property
    def _fixed(self) -> tuple[Callable[[Sequence[int]], Any], Any]:
        """How to take the sizes that are fixed from a shape, and what they are."""
        axes = [axis for axis, size in enumerate(self.shape) if isinstance(size, int)]
        take = itemgetter(*axes) if axes else len
        return take, take(self.shape)

    @cached_property
    def _rank(self) -> int:
        """The number of sizes."""
        return len(self.shape)

    def fits(self, value: object) -> bool:
        """Return whether an array or tensor has the element type and shape; quickly, since every call asks.

        Args:
            value: What was given.

        Returns:
            Whether `require_fit` has nothing to say.

        Example:
            >>> port = Port("x", "tensor(float)", ("batch", 2))
            >>> port.fits(torch.zeros(3, 2)), port.fits(torch.zeros(3, 4)), port.fits([[1.0, 2.0]])
            (True, False, False)
        """
        if isinstance(value, np.ndarray):
            expected = self.array_dtype
            same = value.dtype == expected if expected is not None else self.dtype is None
        elif isinstance(value, Tensor):
            same = self.dtype is None or value.dtype is self.dtype
        else:
            return False
        take, sizes = self._fixed
        shape = value.shape
        return same and len(shape) == self._rank and bool(take(shape) == sizes)

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
        """Return the shape with numbers for names.

        Args:
            sizes: Number by name.

        Returns:
            The shape; ``None`` if a size is not known.

        Example:
            >>> Port("y", "tensor(float)", ("batch", 10)).sized({"batch": 3})
            (3, 10)
        """
        shape = [size if isinstance(size, int) else sizes.get(size or "", -1) for size in self.shape]
        return None if -1 in shape else tuple(shape)


def ports_of(values: Sequence[Any]) -> dict[str, Port]:
    """Return the inputs or outputs of a session by name.

    Args:
        values: What ``get_inputs()`` or ``get_outputs()`` gave.

    Returns:
        The ports, in order.
    """
    return {value.name: Port(value.name, value.type, tuple(value.shape or ())) for value in values}


def session_ports(session: onnxruntime.InferenceSession) -> tuple[dict[str, Port], dict[str, Port]]:
    """Return the inputs and outputs of a session.

    Args:
        session: The session.

    Returns:
        Inputs by name, outputs by name.
    """
    return ports_of(session.get_inputs()), ports_of(session.get_outputs())


def named_sizes(ports: Mapping[str, Port], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes that names in the inputs' shapes stand for in one call.

    Args:
        ports: The inputs.
        shapes: Their shapes in this call.

    Returns:
        Number by name; names that stand for two sizes are left out.

    Example:
        >>> named_sizes({"x": Port("x", "tensor(float)", ("batch", 6))}, {"x": (3, 6)})
        {'batch': 3}
    """
    sizes: dict[str, set[int]] = {}
    for name, port in ports.items():
        for size, number in zip(port.shape, shapes[name], strict=True):
            if isinstance(size, str):
                sizes.setdefault(size, set()).add(int(number))
    return {name: next(iter(numbers)) for name, numbers in sizes.items() if len(numbers) == 1}


def bind_names(names: Sequence[str], inputs: Sequence[Array], named: Mapping[str, Array]) -> dict[str, Array]:
    """Give every input its name.

    Args:
        names: The file's inputs, in order.
        inputs: Values in that order.
        named: Values by name.

    Returns:
        Values by name, in the file's order.

    Raises:
        ModelInputError: If an input is missing, unknown or given twice.

    Example:
        >>> bind_names(["x", "mask"], [1], {"mask": 2})
        {'x': 1, 'mask': 2}
    """
    if len(inputs) == len(names) and not named:
        return dict(zip(names, inputs, strict=True))
    if len(inputs) > len(names):
        raise ModelInputError(f"{len(inputs)} inputs were given, the file takes {len(names)}: {', '.join(names)}.")
    given = dict(zip(names, inputs, strict=False))
    wrong = [name for name in named if name not in names or name in given]
    missing = [name for name in names if name not in given and name not in named]
    if wrong or missing:
        problem = f"unknown or given twice: {', '.join(wrong)}" if wrong else f"missing: {', '.join(missing)}"
        raise ModelInputError(f"Inputs {problem}. The file takes: {', '.join(names)}.")
    return {name: given[name] if name in given else named[name] for name in names}


def bind_inputs(
    names: Sequence[str], inputs: Sequence[Array | Mapping[str, Array]], named: Mapping[str, Array]
) -> dict[str, Array]:
    """Give every input its name, as `bind_names`; a single mapping holds them by name.

    Args:
        names: The file's inputs, in order.
        inputs: Values in that order, or one mapping.
        named: Values by name.

    Returns:
        Values by name, in the file's order.

    Raises:
        ModelInputError: If an input is missing, unknown or given twice.

    Example:
        >>> bind_inputs(["x", "mask"], [{"mask": 2}], {"x": 1})
        {'x': 1, 'mask': 2}
    """
    if len(inputs) == 1 and not isinstance(inputs[0], (np.ndarray, Tensor)):  # quicker than to ask for a mapping
        if isinstance(inputs[0], Mapping):
            return bind_names(names, (), {**inputs[0], **named})
    elif len(inputs) == len(names) == 1 and not named:
        return {names[0]: cast("Array", inputs[0])}
    return bind_names(names, cast("Sequence[Array]", inputs), named)


def require_fit(port: Port, value: object, *, raw: bool = False) -> None:
    """Refuse a value that is no array or tensor of the input's element type and shape.

    Args:
        port: The input.
        value: What was given for it.
        raw: Whether the file takes raw pixels, which the message then says.

    Raises:
        ModelInputError: If it does not fit.
    """
    if port.fits(value):
        return
    if not isinstance(value, (Tensor, np.ndarray)):
        raise ModelInputError(f"Input {port.name!r} is {type(value).__name__}. Give a numpy array or a torch tensor.")
    expected: Any = port.dtype if isinstance(value, Tensor) else port.array_dtype
    if expected is not None and value.dtype != expected:
        if isinstance(value, np.ndarray) and value.dtype.newbyteorder("=") == expected:
            raise ModelInputError(
                f"Input {port.name!r} is {_word(expected)} in the byte order of another processor ({value.dtype.str}). "
                f"Convert it first: value.astype({str(expected)!r})."
            )
        pixels = raw and port.dtype == torch.uint8
        remedy = "Its preprocessing is a part of it: give raw pixels" if pixels else "Convert it first"
        raise ModelInputError(
            f"Input {port.name!r} is {_word(value.dtype)}, the file takes {_word(expected)}. {remedy}."
        )
    if expected is None and isinstance(value, np.ndarray) and port.dtype is not None:
        raise ModelInputError(f"Input {port.name!r} is {_word(port.dtype)}, which numpy has not: give a torch tensor.")
    shape = ", ".join(str(size) for size in port.shape)
    raise ModelInputError(f"Input {port.name!r} has shape {tuple(value.shape)}, the file takes ({shape}).")


def _word(dtype: Any) -> str:
    """Return the name of a dtype of torch or numpy."""
    return str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else np.dtype(dtype).name


def made_inputs(ports: Mapping[str, Port], batch_size: int, seed: int = 0) -> dict[str, Tensor]:
    """Return inputs in a file's shapes: normal numbers, and pixels for ``uint8``.

    Args:
        ports: The file's inputs.
        batch_size: For every size that is not fixed.
        seed: Of the numbers.

    Returns:
        Tensors by name, on the CPU.

    Raises:
        ModelInputError: If an input is of another type: indices, for example, have bounds that the file does not tell.

    Example:
        >>> made_inputs({"x": Port("x", "tensor(float)", ("batch", 2))}, 3)["x"].shape
        torch.Size([3, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, port in ports.items():
        shape = [size if isinstance(size, int) else batch_size for size in port.shape]
        if port.dtype == torch.uint8:
            made[name] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        elif port.dtype is not None and port.dtype.is_floating_point:
            made[name] = torch.randn(shape, generator=generator).to(port.dtype)
        else:
            raise ModelInputError(f"Input {name!r} is {port.type_name}: values cannot be made up for it, give inputs.")
    return made
