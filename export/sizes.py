"""Which sizes of a file's inputs are open: what ``dynamic_shapes`` says, fitted to a sample call."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.inputs import BATCH, Call, OpenSize, batch_sizes

PRESETS = ("sequence", "image-size")
_WORD = re.compile(r"(?P<input>[^:=\s]+):(?P<axis>\d{1,2})=(?P<size>\w+)")
_ACCEPTED = (
    "Accepted: {input name: {axis: name}}, such as {'input_ids': {1: 'sequence'}}; what torch.export takes, with "
    "torch.export.Dim; 'sequence' or 'image-size'; texts such as 'input_ids:1=sequence'."
)


def require_readable(given: Any) -> Any:
    """Return what ``dynamic_shapes`` says, refuse what no model could be given."""
    given = (given,) if isinstance(given, str) else given
    if not isinstance(given, (Mapping, list, tuple)):
        raise ExportOptionError(f"dynamic_shapes={given!r} is not accepted. {_ACCEPTED}")
    for word in given if given and _are_words(given) else ():
        if word not in PRESETS and _WORD.fullmatch(word) is None:
            raise ExportOptionError(f"dynamic_shapes={word!r} is not accepted. {_ACCEPTED}")
    return given


def open_sizes(given: Any, call: Call, parameters: Sequence[str]) -> tuple[OpenSize, ...]:
    """Return the open sizes of a call: the batch, and what ``dynamic_shapes`` names."""
    batch, found, first, of_batch = {BATCH}, {}, {0}, None  # places of inputs whose first axis something is said of
    for name, axis, value in _entries(require_readable(given), call, parameters):
        size = _open_size(name, axis, value, call)
        place = call.names.index(name)
        first |= set() if axis else {place}
        if axis or not call.batched[place]:
            found[place, axis] = size
        elif size is not None and size.named:
            batch, of_batch = (batch - {BATCH}) | {size.name}, size.dim
    if len(batch) > 1:
        raise ExportOptionError(
            f"dynamic_shapes= calls the batch {' and '.join(map(repr, sorted(batch)))}. Give one name, or none."
        )
    # As many layers as rows: of a state whose second axis is called the batch, the first one is not.
    states = {
        place for (place, axis), size in found.items() if axis and size is not None and size.name in batch
    } - first
    rows = (size for size in batch_sizes(call, next(iter(batch)), of_batch) if size.place not in states)
    sizes = (*rows, *filter(None, found.values()))
    lengths: dict[str, int] = {}
    for size in sizes:
        length = call.tensors[size.place].shape[size.axis]
        if lengths.setdefault(size.name, length) != length:
            raise ExportOptionError(
                f"dynamic_shapes= gives the name {size.name!r} to sizes that are {lengths[size.name]} and {length} in "
                f"the sample ({_shapes(call)}). One name is one size: give another name, or another sample."
            )
    return sizes


def at_least_two(call: Call, sizes: Sequence[OpenSize]) -> Call:
    """Return a call whose open sizes beside the batch are 2 or more: with 1 a graph would be made for broadcasting."""
    tensors = list(call.tensors)
    for size in sizes:
        if size.axis not in call.batch_axes[size.place] and tensors[size.place].shape[size.axis] == 1:
            tensors[size.place] = torch.cat([tensors[size.place]] * 2, size.axis)
    return replace(call, tensors=tuple(tensors))


def named_shapes(call: Call, sizes: Sequence[OpenSize]) -> list[list[int | str]]:
    """Return the shapes of a call as a file has them: with names of open sizes."""
    shapes: list[list[int | str]] = [list(tensor.shape) for tensor in call.tensors]
    for size in sizes:
        shapes[size.place][size.axis] = size.name
    return shapes


def _are_words(given: Any) -> bool:
    return not isinstance(given, Mapping) and all(isinstance(word, str) for word in given)


def _entries(given: Any, call: Call, parameters: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
    """Yield what is said of each axis: the input's name, the axis, and what it is to be."""
    if not _are_words(given):
        if not isinstance(given, Mapping) and len(given) > len(parameters):
            raise ExportOptionError(
                f"dynamic_shapes= has {len(given)} entries, forward takes {len(parameters)}: {', '.join(parameters)}."
            )
        tree = given if isinstance(given, Mapping) else dict(zip(parameters, given, strict=False))
        yield from _in_tree("", tree, call)
    for word in sorted(given, key=lambda word: word not in PRESETS) if _are_words(given) else ():  # names win
        if word in PRESETS:
            yield from _preset(word, call)
        elif found := _WORD.fullmatch(word):
            yield found["input"], int(found["axis"]), found["size"]


def _in_tree(path: str, tree: Any, call: Call) -> Iterator[tuple[str, int, Any]]:
    """Yield what a tree says of the inputs, which stand in it as in the arguments of ``forward``."""
    entries = tree if isinstance(tree, Mapping) else dict(enumerate(tree)) if isinstance(tree, (list, tuple)) else None
    if tree is None:
        return
    if path in call.names:
        if entries is None or not all(isinstance(axis, int) or str(axis).isdecimal() for axis in entries):
            raise ExportOptionError(f"dynamic_shapes= has {tree!r} for {path!r}, where its axes belong. {_ACCEPTED}")
        yield from ((path, int(axis), value) for axis, value in entries.items())
    elif entries is not None and (not path or any(name.startswith(f"{path}_") for name in call.names)):
        for key, inner in entries.items():
            yield from _in_tree(f"{path}_{key}" if path else str(key), inner, call)
    else:
        yield path, 0, None


def _preset(preset: str, call: Call) -> Iterator[tuple[str, int, str]]:
    """Yield what a preset opens: the length of tokens and all that is as long, or the last two axes of images."""
    tensors = dict(zip(call.names, call.tensors, strict=True))
    if preset == "image-size":
        what = "axes 2 and 3 of images [batch, channels, height, width]"
        found = [(name, *e) for name, t in tensors.items() if t.ndim == 4 for e in ((2, "height"), (3, "width"))]
    else:
        what = "the length of tokens or a mask, inputs of whole numbers"
        length = next((t.shape[1] for t in call.tensors if t.ndim > 1 and not t.is_floating_point()), None)
        found = [
            (name, axis, "sequence")
            for name, t in tensors.items()
            for axis in range(1, min(t.ndim, 2) if t.is_floating_point() else t.ndim)  # of embeddings not the width
            if t.shape[axis] == length
        ]
    if not found:
        raise ExportOptionError(
            f"dynamic_shapes={preset!r} opens {what}; the inputs are {_shapes(call)}. Name the axis, such as "
            f"dynamic_shapes='{call.names[0]}:1=length'."
        )
    yield from found


def _open_size(name: str, axis: int, value: Any, call: Call) -> OpenSize | None:
    """Return what is said of one axis; nothing where that is that it is fixed."""
    if name not in call.names:
        raise ExportOptionError(f"dynamic_shapes= names {name!r}, which is no input. The inputs are {_shapes(call)}.")
    place = call.names.index(name)
    shape = call.tensors[place].shape
    if not 0 <= axis < len(shape):
        raise ExportOptionError(
            f"dynamic_shapes= names axis {axis} of {name!r}, which is {list(shape)}. Accepted: 0 to {len(shape) - 1}."
        )
    length, hint = shape[axis], getattr(getattr(value, "type", None), "name", "")  # of torch: AUTO, DYNAMIC, STATIC
    if value is None or hint == "STATIC" or (isinstance(value, int) and value == length):
        return None
    if hint:
        return OpenSize(place, axis, f"{name}_{axis}", torch.export.Dim.AUTO, named=False, required=hint != "AUTO")
    if isinstance(value, str) and value.isidentifier():
        value = torch.export.Dim(value)
    if not isinstance(value, torch.export.Dim) or not value.min <= length <= value.max:
        raise ExportOptionError(
            f"dynamic_shapes= has {value!r} for axis {axis} of {name!r}, which is {length} in the sample. Accepted: a "
            f"name; torch.export.Dim with bounds around {length}, Dim.AUTO, Dim.DYNAMIC; None or {length}: fixed."
        )
    return OpenSize(place, axis, value.__name__, value)


def _shapes(call: Call) -> str:
    return ", ".join(f"{name} {list(t.shape)}" for name, t in zip(call.names, call.tensors, strict=True))
