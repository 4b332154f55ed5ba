"""The inputs and outputs of a file: names, element types and shapes, what fits them, and values made up for them."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import onnxruntime

from lit_gelu.export.errors import ModelInputError

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


def onnx_number(type_name: str) -> int:
    """Return ONNX's number of an element type that torch has."""
    return int(_TYPES[type_name][0])


def is_tensor(value: object) -> "TypeGuard[Tensor]":
    """Return whether a value is a tensor of torch; nobody has one who has not imported torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


@dataclass(frozen=True)
class Port:
    """One input or output of a file."""

    name: str
    type_name: str  # onnxruntime's word for its element type, such as "tensor(float)"
    shape: tuple[int | str | None, ...]  # sizes; a name or None where any size fits

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
        """Return whether an array or tensor has the element type and shape; quickly, since every call asks."""
        if isinstance(value, np.ndarray):
            expected = self.array_dtype
            same = value.dtype == expected if expected is not None else self.type_name not in _TYPES
        elif is_tensor(value):
            same = self.dtype is None or value.dtype is self.dtype
        else:
            return False
        take, sizes = self._fixed
        shape = value.shape
        return same and len(shape) == self._rank and bool(take(shape) == sizes)

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
        """Return the shape with numbers for names; ``None`` if a size is not known."""
        shape = [size if isinstance(size, int) else sizes.get(size or "", -1) for size in self.shape]
        return None if -1 in shape else tuple(shape)


def session_ports(session: onnxruntime.InferenceSession) -> Iterator[dict[str, Port]]:
    """Yield the inputs and then the outputs of a session by name, in order."""
    for values in (session.get_inputs(), session.get_outputs()):
        yield {value.name: Port(value.name, value.type, tuple(value.shape or ())) for value in values}


def named_sizes(ports: Mapping[str, Port], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes that names in the inputs' shapes stand for in one call; a name for two sizes is left out."""
    sizes: dict[str, set[int]] = {}
    for name, port in ports.items():
        for size, number in zip(port.shape, shapes[name], strict=True):
            if isinstance(size, str):
                sizes.setdefault(size, set()).add(int(number))
    return {name: next(iter(numbers)) for name, numbers in sizes.items() if len(numbers) == 1}


def shared_sizes(ports: Mapping[str, Port]) -> dict[str, list[tuple[str, int]]]:
    """Return the names of sizes that stand in several places, with the inputs and axes."""
    places: dict[str, list[tuple[str, int]]] = {}
    for name, port in ports.items():
        for axis, size in enumerate(port.shape):
            if isinstance(size, str):
                places.setdefault(size, []).append((name, axis))
    return {size: found for size, found in places.items() if len(found) > 1}


def require_one_size(given: Mapping[str, Array], shared: Mapping[str, Sequence[tuple[str, int]]]) -> None:
    """Refuse inputs in which one name of the file would be two sizes."""
    for size, places in shared.items():
        numbers = [given[name].shape[axis] for name, axis in places]
        if len(set(numbers)) > 1:
            found = ", ".join(
                f"{number} on axis {axis} of {name!r}" for number, (name, axis) in zip(numbers, places, strict=True)
            )
            raise ModelInputError(
                f"{size!r} is one size in the file, and the inputs have {found}. Give inputs that agree, or export the "
                "file with another name where they differ (dynamic_shapes=)."
            )


def bind_names(names: Sequence[str], inputs: Sequence[Array], named: Mapping[str, Array]) -> dict[str, Array]:
    """Give every input its name, in the file's order; refuse one that is missing, unknown or given twice."""
    if len(inputs) == len(names) and not named:
        return dict(zip(names, inputs, strict=True))
    if len(inputs) > len(names):
        raise ModelInputError(f"{len(inputs)} inputs were given, the file takes {len(names)}: {', '.join(names)}.")
    given = dict(zip(names, inputs, strict=False))
    wrong = [name for name in named if name not in names or name in given]
    missing = [name for name in names if name not in given and name not in named]
    if wrong or missing:
        parts = {"unknown or given twice": wrong, "missing": missing}
        problem = "; ".join(f"{what}: {', '.join(map(str, found))}" for what, found in parts.items() if found)
        raise ModelInputError(f"Inputs {problem}. The file takes: {', '.join(names)}.")
    return {name: given[name] if name in given else named[name] for name in names}


def bind_inputs(
    names: Sequence[str], inputs: Sequence[Array | Mapping[str, Array]], named: Mapping[str, Array]
) -> dict[str, Array]:
    """Give every input its name, as `bind_names`; a single mapping holds them by name."""
    if len(inputs) == 1 and not isinstance(inputs[0], np.ndarray) and not is_tensor(inputs[0]):
        if isinstance(inputs[0], Mapping):
            return bind_names(names, (), {**inputs[0], **named})
    elif len(inputs) == len(names) == 1 and not named:
        return {names[0]: cast("Array", inputs[0])}
    return bind_names(names, cast("Sequence[Array]", inputs), named)


def require_fit(port: Port, value: object, *, raw: bool = False) -> None:
    """Refuse a value that is no array or tensor of the input's element type and shape."""
    if port.fits(value):
        return
    if not isinstance(value, np.ndarray) and not is_tensor(value):
        raise ModelInputError(f"Input {port.name!r} is {type(value).__name__}. Give a numpy array or a torch tensor.")
    expected: Any = port.dtype if is_tensor(value) else port.array_dtype
    if expected is not None and value.dtype != expected:
        if isinstance(value, np.ndarray) and value.dtype.newbyteorder("=") == expected:
            raise ModelInputError(
                f"Input {port.name!r} is {_word(expected)} in the byte order of another processor ({value.dtype.str}). "
                f"Convert it first: value.astype({str(expected)!r})."
            )
        pixels = raw and port.type_name == "tensor(uint8)"
        remedy = "Its preprocessing is a part of it: give raw pixels" if pixels else "Convert it first"
        raise ModelInputError(
            f"Input {port.name!r} is {_word(value.dtype)}, the file takes {_word(expected)}. {remedy}."
        )
    if expected is None and isinstance(value, np.ndarray) and port.type_name in _TYPES:
        word = _TYPES[port.type_name][1]
        raise ModelInputError(f"Input {port.name!r} is {word}, which numpy has not: give a torch tensor.")
    shape = ", ".join(str(size) for size in port.shape)
    raise ModelInputError(f"Input {port.name!r} has shape {tuple(value.shape)}, the file takes ({shape}).")


def require_not_empty(given: Mapping[str, Array], names: Iterable[str]) -> None:
    """Refuse inputs of these names without values, on which onnxruntime would end the process."""
    for name in names:
        value = given[name]
        if 0 in value.shape:
            raise ModelInputError(
                f"Input {name!r} has shape {tuple(value.shape)}, which holds no values, and onnxruntime's LSTM and GRU "
                "on the CPU end the whole process on such. Give at least one row, or leave the call out."
            )


def require_values(given: Mapping[str, object]) -> None:
    """Refuse tensors that do not hold their values one beside the other: sparse ones, and those of no device."""
    torch = sys.modules.get("torch")
    for name, value in given.items():
        if torch is None or not isinstance(value, torch.Tensor):
            continue
        if value.device.type == "meta":
            raise ModelInputError(
                f"Input {name!r} is on the device meta, where tensors have no values. Give its values."
            )
        if value.layout is not torch.strided:
            raise ModelInputError(
                f"Input {name!r} is sparse ({value.layout}), the file takes dense tensors. Give {name}.to_dense()."
            )


def _word(dtype: Any) -> str:
    """Return the name of a dtype of torch or numpy."""
    return str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else np.dtype(dtype).name


def _require_no_open_size(ports: Mapping[str, Port]) -> None:
    """Refuse to make up inputs whose sizes, beside the batch, are not known: times depend on them."""
    batch = next((port.shape[0] for port in ports.values() if port.shape), None)
    for name, port in ports.items():
        for axis, size in enumerate(port.shape):
            is_batch = size == batch and (axis == 0 or size is not None)
            if not (isinstance(size, int) or is_batch):
                shape = ", ".join(map(str, port.shape))
                raise ModelInputError(
                    f"Input {name!r} takes ({shape}): its axis {axis} is open beside the batch, and what is measured "
                    "depends on it. Give inputs= of the sizes that you will use."
                )


def made_inputs(ports: Mapping[str, Port], batch_size: int, seed: int = 0) -> "dict[str, Tensor]":
    """Return inputs in a file's shapes: normal numbers, and pixels for ``uint8``; others have bounds not told."""
    import torch

    _require_no_open_size(ports)
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
