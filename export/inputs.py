"""A module's inputs and outputs as flat, named lists of tensors, and which sizes of them a file leaves open."""

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lit_gelu.errors import ArgumentError, ModelInputError, shown
from lit_gelu.export.object_tensors import ObjectsOfCall, TensorName, closed, opened
from lit_gelu.sandbox import holds_tensors, input_sample_of, isolated_generators, leaves_with_paths, preserved_state

if TYPE_CHECKING:
    from lit_gelu.export.input_kinds import Kind

Batch = tuple[Tensor, ...]
RAW_DTYPE = torch.uint8  # of pixels in front of a preprocessing
BOUNDS = "bounds"  # where a traced graph keeps them as notes, among what is not written to the file
BATCH = "batch"  # its name in a file, where the caller gives none
PAST, PRESENT = "past_key_values", "present"  # what the tensors of a cache are called: inputs, outputs


@dataclass(frozen=True)
class Call:
    """One call of a module's ``forward``, taken apart."""

    names: tuple[str, ...]  # of the tensors: the argument's name, and for nested ones the path joined with underscores
    tensors: tuple[Tensor, ...]  # on the CPU; floating-point ones in float32, or float64 where the caller has it
    leaves: tuple[Any, ...]  # all leaves of the arguments, the tensors as None
    structure: pytree.TreeSpec  # how the leaves make (args, kwargs)
    positions: tuple[int, ...]  # where the tensors stand among the leaves
    named: tuple[tuple[int, ...], ...] | None = None  # which axes of each are called as the batch is, if any name is
    constants: tuple[str, ...] = ()  # the arguments that are no tensors, as name=value
    has_objects: bool = False  # whether some tensors are in objects that torch does not look into

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return ``(args, kwargs)`` with other tensors in the places of these."""
        leaves = [_own_copy(leaf) for leaf in self.leaves]  # forward may write to a list or an object
        for position, tensor in zip(self.positions, tensors, strict=True):
            leaves[position] = tensor
        arguments = pytree.tree_unflatten(leaves, self.structure)
        args, kwargs = closed(arguments) if self.has_objects else arguments
        return args, kwargs

    @property
    def batch_size(self) -> int:
        """The size of the first tensor's first dimension."""
        return self.tensors[0].shape[0]

    @property
    def batched(self) -> tuple[bool, ...]:
        """Which tensors have the batch as their first dimension."""
        return tuple(0 in axes for axes in self.batch_axes)

    @property
    def batch_axes(self) -> tuple[tuple[int, ...], ...]:
        """Which axes of each tensor are the batch: the named ones, else a first axis of the first tensor's length."""
        if self.named is not None:
            return self.named
        return tuple((0,) if tensor.shape[:1] == (self.batch_size,) else () for tensor in self.tensors)

    def resized(self, batch_size: int) -> tuple[Tensor, ...]:
        """Return the tensors with another batch size; rows are repeated or left out."""
        return self.selected(self.tensors, torch.arange(batch_size) % self.batch_size)

    def selected(self, tensors: Sequence[Tensor], rows: Tensor) -> tuple[Tensor, ...]:
        """Return rows of a batch: tensors like these, cut along every axis that is the batch."""
        selected = []
        for tensor, axes in zip(tensors, self.batch_axes, strict=True):
            for axis in axes:
                tensor = tensor.index_select(axis, rows)
            selected.append(tensor)
        return tuple(selected)

    def whole_numbers(self, *, raw: bool) -> list[int]:
        """Return which tensors hold whole numbers or truth values, as masks do; raw pixels, the first one, do not."""
        return [
            place
            for place, (name, tensor) in enumerate(zip(self.names, self.tensors, strict=True))
            if tensor.numel() and not (raw and place == 0) and not tensor.is_complex()
            if not tensor.is_floating_point() or ("mask" in name and bool(((tensor == 0) | (tensor == 1)).all()))
        ]

    @property
    def wide(self) -> list[int]:
        """Which tensors are float64."""
        return [place for place, tensor in enumerate(self.tensors) if tensor.dtype == torch.float64]

    def narrowed(self, kept: Sequence[int] = ()) -> "Call":
        """Return the call with float32 in the place of float64, but for some tensors."""
        pairs = enumerate(self.tensors)
        return replace(self, tensors=tuple(t.float() if i in self.wide and i not in kept else t for i, t in pairs))

    def with_batch_of(self, shapes: Sequence[Sequence[object]]) -> "Call":
        """Return the call whose batch are all sizes that have the name of the first one; shapes as a file has them."""
        # Nothing is the batch where the first size is a number: that file has a fixed one.
        name = shapes[0][0]
        if not isinstance(name, (str, int)):
            return self
        axes = (tuple(i for i, size in enumerate(s) if size == name and isinstance(name, str)) for s in shapes)
        return replace(self, named=tuple(axes))


@dataclass(frozen=True)
class OpenSize:
    """One size of one input that a file leaves open."""

    place: int  # of the input
    axis: int
    name: str  # in the file
    dim: Any  # what torch.export takes for it
    named: bool = True  # whether the caller gave the name, and not one of torch's hints
    required: bool = True  # whether a module that fixes it is refused; not for Dim.AUTO, which leaves that to torch
    limits: Any = None  # of the batch, which is traced without bounds: the `Dim` that the caller gave for it

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The least and the largest that the caller's `Dim` allows."""
        dim = self.limits or self.dim
        return getattr(dim, "min", None), getattr(dim, "max", None)


def batch_sizes(call: Call, name: str = BATCH, limits: Any = None) -> tuple[OpenSize, ...]:
    """Return the open sizes of a call of which nothing else is said: the batch, in every input that has it."""
    rows = torch.export.Dim(name)
    places = [place for place, is_batched in enumerate(call.batched) if is_batched]
    return tuple(OpenSize(place, 0, name, rows, limits=limits) for place in places)


def sample_of(model: nn.Module, input_sample: Any) -> Any:
    """Return the sample to trace with: the given one, or the module's ``example_input_array``."""
    sample = input_sample_of(model, input_sample)
    if sample is None:
        raise ModelInputError(
            f"{type(model).__name__} has no example_input_array. Set it in the module, or give input_sample=: a "
            "tensor, a tuple of forward's arguments or a dict of them by name. The first dimension is the batch."
        )
    return sample


def take_apart(model: nn.Module, sample: Any) -> Call:
    """Bind a sample to ``forward``'s arguments and take it apart into named tensors."""
    # As Lightning reads example_input_array.
    kwargs: dict[str, Any] = dict(sample) if isinstance(sample, Mapping) else {}
    args = () if isinstance(sample, Mapping) else tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ModelInputError(
            f"The input sample does not fit {type(model).__name__}.forward{signature}: {error}. Give a tensor, a tuple "
            "of its positional arguments, or a dict of its arguments by name."
        ) from error
    arguments = _opened((bound.args, bound.kwargs))
    paths, structure = list(leaves_with_paths(arguments)), pytree.tree_structure(arguments)
    positions = tuple(i for i, (_, leaf) in enumerate(paths) if isinstance(leaf, Tensor))
    tensors = tuple(plain_tensor(paths[i][1]) for i in positions)
    if not tensors or tensors[0].ndim == 0 or tensors[0].shape[0] == 0:
        raise ModelInputError("The input sample needs a tensor whose first dimension is the batch, of one row or more.")
    names = _names([paths[i][0] for i in positions], signature)
    complex_ones = [name for name, tensor in zip(names, tensors, strict=True) if tensor.is_complex()]
    if complex_ones:
        raise ModelInputError(
            f"The input sample has complex tensors ({', '.join(complex_ones)}), and no file takes complex numbers. Let "
            "forward take real ones and begin with torch.view_as_complex(x), and give torch.view_as_real(x)."
        )
    leaves = tuple(None if i in positions else _own_copy(leaf) for i, (_, leaf) in enumerate(paths))
    others = [(path, leaf) for (path, _), leaf in zip(paths, leaves, strict=True) if leaf is not None]
    constants = dict(zip(_names([path for path, _ in others], signature), (leaf for _, leaf in others), strict=True))
    if hidden := [f"{name!r}, a {type(leaf).__name__}" for name, leaf in constants.items() if holds_tensors(leaf)]:
        raise ModelInputError(
            f"The input sample has {hidden[0]}, whose tensors are in no attributes: a file would hold them as "
            "constants. Leave it out, or let forward take the tensors and make it of them."
        )
    texts = tuple(f"{name}={shown(leaf)}" for name, leaf in constants.items())
    has_objects = any(isinstance(path[-1], TensorName) for path, _ in paths)
    return Call(tuple(names), tensors, leaves, structure, positions, constants=texts, has_objects=has_objects)


def random_pixels(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return pixels that are all equally probable."""
    return torch.randint(0, 256, shape, generator=generator, dtype=RAW_DTYPE)


def drawn(tensors: Sequence[Tensor], kinds: "Mapping[int, Kind]", generator: torch.Generator) -> Batch:
    """Return tensors with drawn values in the places of which it is known what they may hold."""
    return tuple(kinds[i].draw(t.shape, generator).to(t.dtype) if i in kinds else t for i, t in enumerate(tensors))


def random_batch(call: Call, rows: int, generator: torch.Generator, kinds: "Mapping[int, Kind]", *, raw: bool) -> Batch:
    """Return random pixels, what tensors may hold, and standard normal values for the other floating-point ones."""
    first, *others = (
        torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t.dtype)
        if t.is_floating_point() and i not in kinds
        else t
        for i, t in enumerate(drawn(call.resized(rows), kinds, generator))
    )
    return (random_pixels(first.shape, generator) if raw else first, *others)


_PLAIN = (Tensor, int, float, str, type(None))


def _opened(tree: Any) -> Any:
    """Return a tree with the objects opened that have tensors in them, if there is any object at all."""
    return tree if all(isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves(tree)) else opened(tree)


def _own_copy(leaf: Any) -> Any:
    """Return a copy of an argument that is no tensor; the argument itself if it cannot be copied, such as a lock."""
    try:
        return copy.deepcopy(leaf)
    except Exception:  # noqa: BLE001 - a class may raise anything
        return leaf


def tensors_by_name(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of one call of ``forward`` by the names that `take_apart` gives them, however it is called."""
    bound = signature.bind(*args, **kwargs)
    leaves = [pair for pair in leaves_with_paths(_opened((bound.args, bound.kwargs))) if isinstance(pair[1], Tensor)]
    return dict(zip(_names([path for path, _ in leaves], signature), (tensor for _, tensor in leaves), strict=True))


def plain_tensor(tensor: Tensor) -> Tensor:
    """Return an input detached, on the CPU, floating-point values in float32, or float64 where the caller has that."""
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


def _names(paths: Sequence[tuple[Any, ...]], signature: inspect.Signature) -> list[str]:
    """Return names such as ``mask``, ``batch_mask`` or ``args_0`` for leaves of ``(args, kwargs)``."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    positional = [parameter.name for parameter in parameters if parameter.kind in by_place]
    rest = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "")
    names = []
    for path in paths:
        of_kind, argument, *inner = [_key(entry) for entry in path]
        if of_kind == 0:  # positional: an index into the parameters; those beyond belong to *args
            beyond = argument - len(positional)
            argument = positional[argument] if beyond < 0 else f"{rest}_{beyond}"
        names.append(_joined([argument, *inner], path, PAST))
    return unique_names(names)


def _joined(keys: Sequence[Any], path: Sequence[Any], of_cache: str) -> str:
    """Return a leaf's name: keys with underscores between, and behind a point what a tensor in an object is called."""
    if not path or not isinstance(path[-1], TensorName):
        return "_".join(map(str, keys))
    return f"{of_cache if path[-1].in_cache else '_'.join(map(str, keys[:-1])) or 'output'}.{keys[-1]}"


def _key(entry: Any) -> Any:
    """Return the key, index or attribute name that one step of a path stands for."""
    return getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", "")))


def unique_names(names: list[str]) -> list[str]:
    """Number names that occur twice: x, y, x_2."""
    unique: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        unique.append(name if name not in unique else next(n for n in numbered if n not in {*unique, *names}))
    return unique


SCOPE = "model"  # under which FlatModule keeps the module, and so what its names begin with in the graph


class FlatModule(nn.Module):
    """A module as a function from a flat list of tensors to a flat tuple of tensors.

    The exporter names and shapes what it sees; nested and constant arguments, dicts and dataclasses never reach it.
    The first tensor may go through a preprocessing before it is the module's, the first output through a softmax.
    """

    def __init__(
        self, model: nn.Module, call: Call, preprocessing: nn.Module | None = None, *, softmax: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.preprocessing = preprocessing
        self.softmax = softmax
        self.mode: Callable[[], AbstractContextManager[Any]] = nullcontext  # in which forward runs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call the module."""
        with self.mode():
            return tuple(tensor for _, tensor in named_outputs(self.run(tensors)))

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """Call the module."""
        return self.called(self.model, self.fed(tensors))

    @torch.no_grad()
    def tried(self, tensors: Sequence[Tensor]) -> Any:
        """Call the module on copies, and leave it and the generators of random numbers as they were."""
        with preserved_state(self.model), isolated_generators([]):
            return self.run([tensor.clone() for tensor in tensors])

    def fed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return what the module gets: the tensors, the first one behind the preprocessing."""
        first, *others = tensors
        return [first if self.preprocessing is None else self.preprocessing(first), *others]

    def called(self, model: nn.Module, fed: Sequence[Tensor]) -> Any:
        """Call a module as this one is called."""
        args, kwargs = self.call.arguments(fed)
        before = ObjectsOfCall((args, kwargs)) if self.call.has_objects else None
        output = model(*args, **kwargs)
        if before is not None:
            before.require_kept(f"{type(self.model).__name__}.forward", output)
        return probabilities_first(output) if self.softmax else output


def as_in_a_file(tensor: Tensor) -> Tensor:
    """Return an output as a file gives it: complex numbers as real and imaginary part, on a last axis of two."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array: bfloat16, which numpy lacks, as float64; complex numbers as a file gives them."""
    tensor = as_in_a_file(tensor.detach().cpu())
    array: np.ndarray = (tensor.double() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def probabilities_first(output: Any) -> Any:
    """Return an output whose first tensor went through a softmax over its last dimension."""
    leaves, structure = pytree.tree_flatten(output)
    place = next((i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)), None)
    if place is not None:
        leaves[place] = torch.softmax(leaves[place], dim=-1)
    return pytree.tree_unflatten(leaves, structure)


def named_outputs(output: Any) -> list[tuple[str, Tensor]]:
    """Return an output's tensors as ``output``; ``output_0``, ``output_1`` ... of sequences; by the keys of dicts."""
    if isinstance(output, Tensor):
        return [("output", output)]
    pairs = []
    for path, leaf in leaves_with_paths(_opened(output)):
        if isinstance(leaf, Tensor):
            name = _joined([_key(entry) for entry in path], path, PRESENT)
            pairs.append((f"output_{name}" if name[:1].isdigit() else name, leaf))
    return pairs


def left_out(output: Any) -> list[str]:
    """Say which parts of an output are in no file: ``None``, numbers, and objects whose tensors torch does not see."""
    notes = []
    for path, leaf in leaves_with_paths(_opened(output)):
        if not isinstance(leaf, Tensor):
            what = f"a {type(leaf).__name__} with tensors in it" if holds_tensors(leaf) else repr(leaf)[:40]
            notes.append(f"output {'.'.join(str(_key(entry)) for entry in path) or 0!r} is {what}: not in the file.")
    return notes


_ACCEPTED = "Accepted: {input name: {axis: name}}, such as {'input_ids': {1: 'sequence'}}; what torch.export takes."


def open_sizes(dynamic_shapes: Any, call: Call, parameters: Sequence[str]) -> tuple[OpenSize, ...]:
    """Return the open sizes of a call: the batch, and what ``dynamic_shapes`` names; ``forward`` has ``parameters``."""
    batch, limits = {BATCH}, None
    opened: dict[tuple[int, int], OpenSize | None] = {}
    first = {0}  # places of inputs whose first axis is the batch, or is said to be something else
    tree = dynamic_shapes
    if isinstance(tree, (list, tuple)) and len(tree) <= len(parameters):
        tree = dict(zip(parameters, tree, strict=False))
    if not isinstance(tree, Mapping):
        takes = f"forward takes {', '.join(parameters)}."
        raise ArgumentError(f"dynamic_shapes={dynamic_shapes!r} is not accepted: {takes} {_ACCEPTED}")
    entries = [(name, axis, _open_size(name, axis, value, call)) for name, axis, value in _in_tree("", tree, call)]
    # Where the first input's rows are fixed, so are those of all that are as long and have no name of their own.
    fixed = {call.names.index(name) for name, axis, size in entries if axis == 0 and size is None}
    batched = [is_batched and not fixed & {0, place} for place, is_batched in enumerate(call.batched)]
    for name, axis, size in entries:
        place = call.names.index(name)
        first |= set() if axis else {place}
        if axis or not batched[place]:
            opened[place, axis] = size
        elif size is not None and size.named:
            batch, limits = (batch - {BATCH}) | {size.name}, size.dim
    if len(batch) > 1:
        raise ArgumentError(f"dynamic_shapes= calls the batch {' and '.join(map(repr, sorted(batch)))}. Give one name.")
    # As many layers as rows: of a state whose second axis is called the batch, the first one is not.
    states = {place for (place, axis), size in opened.items() if axis and size is not None and size.name in batch}
    rows = (
        size
        for size in batch_sizes(call, next(iter(batch)), limits)
        if batched[size.place] and size.place not in states - first
    )
    sizes = (*rows, *filter(None, opened.values()))
    lengths: dict[str, int] = {}
    for size in sizes:
        length = call.tensors[size.place].shape[size.axis]
        if lengths.setdefault(size.name, length) != length:
            raise ArgumentError(
                f"dynamic_shapes= gives the name {size.name!r} to sizes that are {lengths[size.name]} and {length} in "
                f"the sample ({_shapes(call)}). One name is one size: give another name, or another sample."
            )
    return sizes


def fixed_batch(call: Call) -> str:
    """Return the ``dynamic_shapes`` that fixes the batch, as text."""
    return f"{{{call.names[0]!r}: {{0: None}}}}"


def sum_of(name: object) -> list[str]:
    """Return the names in that of an open size: one, or several whose sum it is, as ``past + sequence``."""
    parts = [part.strip() for part in str(name).split("+")]
    return [] if not isinstance(name, str) else parts if all(part.isidentifier() for part in parts) else [name]


def sample_lengths(call: Call, shapes: Sequence[Sequence[int | str | None]]) -> dict[str, int]:
    """Return the sample's open sizes by their names, without those that are sums of others."""
    return {
        str(size): length
        for tensor, shape in zip(call.tensors, shapes, strict=True)
        for size, length in zip(shape, tensor.shape, strict=True)
        if len(sum_of(size)) == 1
    }


def named_shapes(call: Call, sizes: Sequence[OpenSize]) -> list[list[int | str]]:
    """Return the shapes of a call as a file has them: with names of open sizes."""
    shapes: list[list[int | str]] = [list(tensor.shape) for tensor in call.tensors]
    for size in sizes:
        shapes[size.place][size.axis] = size.name
    return shapes


def _in_tree(path: str, tree: Any, call: Call) -> Iterator[tuple[str, int, Any]]:
    """Yield what a tree says of the inputs, which stand in it as in the arguments of ``forward``."""
    entries = tree if isinstance(tree, Mapping) else dict(enumerate(tree)) if isinstance(tree, (list, tuple)) else None
    if tree is None:
        return
    parts = [
        name for name in call.names if fnmatchcase(name, f"{path}.*") or (path != name and fnmatchcase(name, path))
    ]
    if parts and path not in call.names:  # an object's: for all tensors in it
        for name in parts:
            yield from _in_tree(name, tree, call)
    elif path in call.names:
        if entries is None or not all(isinstance(axis, int) or str(axis).isdecimal() for axis in entries):
            raise ArgumentError(f"dynamic_shapes= has {tree!r} for {path!r}, where its axes belong. {_ACCEPTED}")
        yield from ((path, int(axis), value) for axis, value in entries.items())
    elif entries is not None and (not path or any(name.startswith(f"{path}_") for name in call.names)):
        for key, inner in entries.items():
            yield from _in_tree(f"{path}_{key}" if path else str(key), inner, call)
    else:
        yield path, 0, None


def _open_size(name: str, axis: int, value: Any, call: Call) -> OpenSize | None:
    """Return what one axis is to be; nothing where it is to be fixed."""
    if name not in call.names:
        raise ArgumentError(f"dynamic_shapes= names {name!r}, which is no input. The inputs are {_shapes(call)}.")
    place = call.names.index(name)
    shape = call.tensors[place].shape
    if not 0 <= axis < len(shape):
        raise ArgumentError(
            f"dynamic_shapes= names axis {axis} of {name!r}, which is {list(shape)}. Accepted: 0 to {len(shape) - 1}."
        )
    length, hint = shape[axis], getattr(getattr(value, "type", None), "name", "")  # of torch: AUTO, DYNAMIC, STATIC
    if value is None or hint == "STATIC" or (isinstance(value, int) and value == length):
        return None
    if hint:
        return OpenSize(place, axis, f"{name}_{axis}", torch.export.Dim.AUTO, named=False, required=hint != "AUTO")
    if isinstance(value, str) and len(sum_of(value)) > 1:  # torch finds out by itself that it is
        return OpenSize(place, axis, " + ".join(sum_of(value)), torch.export.Dim.AUTO, named=False)
    if isinstance(value, str) and value.isidentifier():
        value = torch.export.Dim(value)
    if not isinstance(value, torch.export.Dim) or not value.min <= length <= value.max:
        raise ArgumentError(
            f"dynamic_shapes= has {value!r} for axis {axis} of {name!r}, which is {length} in the sample. Accepted: a "
            f"name; torch.export.Dim with bounds around {length}, Dim.AUTO, Dim.DYNAMIC; None or {length}: fixed."
        )
    return OpenSize(place, axis, value.__name__, value)


def _shapes(call: Call) -> str:
    return ", ".join(f"{name} {list(t.shape)}" for name, t in zip(call.names, call.tensors, strict=True))
