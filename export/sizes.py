"""Which sizes of a file's inputs are open: what ``dynamic_shapes`` says, fitted to a sample call."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.inputs import Call

BATCH = "batch"
_TRACED = 2  # the size that torch assumes at least; no bound of the module
PRESETS = ("sequence", "image-size")
_WORD = re.compile(r"(?P<input>[^:=\s]+):(?P<axis>\d{1,2})=(?P<size>\w+)")
_ACCEPTED = (
    "Accepted: {input name: {axis: name}}, such as {'input_ids': {1: 'sequence'}}; what torch.export takes, with "
    "torch.export.Dim; 'sequence' or 'image-size'; texts such as 'input_ids:1=sequence'."
)
_LAST_TWO = {2: "height", 3: "width"}


@dataclass(frozen=True)
class OpenSize:
    """One size of one input that a file leaves open."""

    place: int  # of the input
    axis: int
    name: str  # in the file
    dim: Any  # what torch.export takes for it
    named: bool = True  # whether the caller gave the name, and not one of torch's hints
    required: bool = True  # whether a module that fixes it is refused; not for Dim.AUTO, which leaves that to torch


def require_readable(given: Any) -> Any:
    """Return what ``dynamic_shapes`` says, ``None`` for nothing; refuse what no model could be given."""
    given = (given,) if isinstance(given, str) else given
    if given is not None and not isinstance(given, (Mapping, list, tuple)):
        raise ExportOptionError(f"dynamic_shapes={given!r} is not accepted. {_ACCEPTED}")
    for word in given if given and _are_words(given) else ():
        if word not in PRESETS and _WORD.fullmatch(word) is None:
            raise ExportOptionError(f"dynamic_shapes={word!r} is not accepted. {_ACCEPTED}")
    return given or None


def recorded(sizes: Sequence[OpenSize], call: Call) -> dict[str, dict[int, str]]:
    """Return the sizes as a file records them, without the batch: names by input and axis."""
    found: dict[str, dict[int, str]] = {}
    for size in sizes:
        if size.axis or not call.batched[size.place]:
            found.setdefault(call.names[size.place], {})[size.axis] = size.name
    return found


def open_sizes(given: Any, call: Call, parameters: Sequence[str]) -> tuple[OpenSize, ...]:
    """Return the open sizes of a call: the batch, and what ``dynamic_shapes`` names."""
    # Inputs are found by the names of forward's parameters where a tuple gives them by position.
    batch, found = BATCH, {}
    for name, axis, value in _entries(require_readable(given) or (), call, parameters):
        place = _place(name, axis, call)
        size = _open_size(place, axis, value, call)
        if axis or not call.batched[place]:
            found[place, axis] = size
        elif size is not None and size.named:
            if batch not in {BATCH, size.name}:
                raise ExportOptionError(
                    f"dynamic_shapes= calls the batch, axis 0 of {name!r}, {batch!r} and {size.name!r}. Give one "
                    "name, or leave it out: it is open anyway."
                )
            batch = size.name
    rows = torch.export.Dim(batch)
    batched = [OpenSize(place, 0, batch, rows) for place, is_batched in enumerate(call.batched) if is_batched]
    sizes = (*batched, *(size for size in found.values() if size is not None))
    _require_one_size_a_name(sizes, call)
    return sizes


def at_least_two(call: Call, sizes: Sequence[OpenSize]) -> Call:
    """Return a call whose open sizes are 2 or more: with 1 a graph would be made for broadcasting."""
    tensors = list(call.tensors)
    for size in sizes:
        tensor = tensors[size.place]
        if size.axis and tensor.shape[size.axis] == 1:
            tensors[size.place] = torch.cat([tensor, tensor], size.axis)
    return replace(call, tensors=tuple(tensors))


def torch_shapes(sizes: Sequence[OpenSize], call: Call) -> tuple[dict[int, Any] | None, ...]:
    """Return the sizes as torch.export takes them, by input."""
    return tuple(
        {size.axis: size.dim for size in sizes if size.place == place} or None for place in range(len(call.names))
    )


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
        return
    for word in sorted(given, key=lambda word: word not in PRESETS):  # what is named goes before what is preset
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
        raise _no_such_input(path, call)


def _preset(preset: str, call: Call) -> Iterator[tuple[str, int, str]]:
    """Yield what a preset opens: the length of tokens and all that is as long, or the last two axes of images."""
    tensors = dict(zip(call.names, call.tensors, strict=True))
    if preset == "image-size":
        what = "axes 2 and 3 of images [batch, channels, height, width]"
        found = [(name, *entry) for name, t in tensors.items() if t.ndim == 4 for entry in _LAST_TWO.items()]
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


def _place(name: str, axis: int, call: Call) -> int:
    """Return where an input stands; refuse one that does not exist, or has no such axis."""
    if name not in call.names:
        raise _no_such_input(name, call)
    place = call.names.index(name)
    if not 0 <= axis < call.tensors[place].ndim:
        raise ExportOptionError(
            f"dynamic_shapes= names axis {axis} of {name!r}, which is {list(call.tensors[place].shape)}. Accepted: 0 "
            f"to {call.tensors[place].ndim - 1}."
        )
    return place


def _open_size(place: int, axis: int, value: Any, call: Call) -> OpenSize | None:
    """Return what is said of one axis; nothing where that is that it is fixed."""
    where, length = f"axis {axis} of {call.names[place]!r}", call.tensors[place].shape[axis]
    hint = _hint(value)
    if value is None or hint == "STATIC" or (isinstance(value, int) and value == length):
        return None
    if _is_hint(value):
        name = f"{call.names[place]}_{axis}"
        return OpenSize(place, axis, name, torch.export.Dim.AUTO, named=False, required=hint != "AUTO")
    if isinstance(value, str) and value.isidentifier():
        value = torch.export.Dim(value)
    if not isinstance(value, torch.export.Dim) or not value.min <= length <= value.max:
        raise ExportOptionError(
            f"dynamic_shapes= has {value!r} for {where}, which is {length} in the sample. Accepted: a name; "
            f"torch.export.Dim with bounds around {length}, Dim.AUTO, Dim.DYNAMIC; None or {length} if it is fixed."
        )
    return OpenSize(place, axis, value.__name__, value)


def _hint(value: Any) -> str:
    """Return which of torch's hints a value is: AUTO, DYNAMIC, STATIC; empty if none."""
    return str(getattr(getattr(value, "type", None), "name", ""))


def _is_hint(value: Any) -> bool:
    return _hint(value) in {"AUTO", "DYNAMIC"}


def _require_one_size_a_name(sizes: Sequence[OpenSize], call: Call) -> None:
    """Refuse one name for sizes that differ in the sample."""
    first: dict[str, OpenSize] = {}
    for size in sizes:
        other = first.setdefault(size.name, size)
        lengths = [call.tensors[s.place].shape[s.axis] for s in (other, size)]
        if lengths[0] != lengths[1]:
            raise ExportOptionError(
                f"dynamic_shapes= gives the name {size.name!r} to axis {other.axis} of {call.names[other.place]!r}, "
                f"{lengths[0]} in the sample, and axis {size.axis} of {call.names[size.place]!r}, {lengths[1]}. One "
                "name is one size: give another name, or another sample."
            )


def _no_such_input(name: str, call: Call) -> ExportOptionError:
    return ExportOptionError(f"dynamic_shapes= names {name!r}, which is no input. The inputs are {_shapes(call)}.")


def _shapes(call: Call) -> str:
    return ", ".join(f"{name} {list(t.shape)}" for name, t in zip(call.names, call.tensors, strict=True))
