"""What a module may take beside its sample: the values of whole numbers, and other sizes of open dimensions."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lit_gelu.export.inputs import Call, OpenSize, named_shapes, sample_lengths, sum_of

# Operators of torch that hand values on.
_HANDING_ON = frozenset({
    "_to_copy", "_unsafe_view", "alias", "clamp", "clamp_min", "clone", "detach", "expand", "lift_fresh", "masked_fill",
    "permute", "select", "slice", "split", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view",
})  # fmt: skip
_PROBABILITY_OF_KEEPING = 0.7


@dataclass(frozen=True)
class Indices:
    """Indices into a table of that many rows."""

    size: int

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Return indices: all of the table's before one comes again, so that as many as possible are tried."""
        count = shape.numel()
        orders = [torch.randperm(self.size, generator=generator) for _ in range(-(-count // self.size))]
        return torch.cat(orders)[:count].reshape(shape)


@dataclass(frozen=True)
class Mask:
    """What is to be kept and what is not."""

    kept: int  # the value that stands for the former: the sample's commoner one

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Return masks: some keep the first places, some any."""
        # Each keeps its first place, and the first mask not its last: there are both values wherever there are two
        # places, and no row of which nothing is kept, whose attention has no meaning.
        length = shape[-1]
        lengths = torch.randint(1, length + 1, (*shape[:-1], 1), generator=generator)
        beginning = torch.arange(length) < lengths
        anywhere = torch.rand(shape, generator=generator) < _PROBABILITY_OF_KEEPING
        kept = torch.where(torch.rand((*shape[:-1], 1), generator=generator) < 0.5, beginning, anywhere)
        rows = kept.reshape(-1, length)
        rows[0, -1] = False
        rows[:, 0] = True
        return torch.where(kept, self.kept, 1 - self.kept)


@dataclass(frozen=True)
class OfSample:
    """Numbers that the sample holds."""

    values: Tensor

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Return some of them, in any order and as often as it comes."""
        return self.values[torch.randint(len(self.values), shape, generator=generator)]


Kind = Indices | Mask | OfSample


def integer_kinds(
    call: Call, run: Callable[[Sequence[Tensor]], object], places: Sequence[int]
) -> tuple[dict[int, Kind], list[str]]:
    """Say what the inputs of whole numbers at some places may hold."""
    # An input that is read as an index of a table (an embedding, table[i], gather, one-hot) holds indices of that
    # table. One that is Boolean, or 0 and 1 on the sample, is a mask. Any other holds numbers of the sample's range.
    tensors = [t.clone() for t in call.tensors]  # one tensor may be two inputs
    with _Reach({i: tensors[i] for i in places}) as reach:
        run(tensors)
    kinds: dict[int, Kind] = {}
    notes = []
    for i in places:
        tensor, name = call.tensors[i], call.names[i]
        low, high = int(tensor.min()), int(tensor.max())
        if i in reach.sizes:
            kinds[i] = Indices(reach.sizes[i])
        elif tensor.ndim and (tensor.dtype == torch.bool or (low >= 0 and high <= 1)):
            kinds[i] = Mask(int(tensor.double().mean() >= 0.5))
        elif low < high:
            kinds[i] = OfSample(tensor.flatten())
            notes.append(f"input {name!r} reaches no table: the sample's own values were drawn.")
        else:
            notes.append(f"input {name!r} was not varied: it reaches no table, and is {low} all over the sample.")
    return kinds, notes


class _Reach(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows inputs through a module to the tables that they are indices of: the size of the smallest one."""

    def __init__(self, inputs: Mapping[int, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[int, int] = {}
        # By the tensor's identity: the input's place, and what was added to it. The tensors are kept, so that no other
        # one gets their identity.
        self._places = {id(tensor): (place, 0) for place, tensor in inputs.items()}
        self._kept: list[object] = list(inputs.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and note what it does to the inputs."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        for table, dim, index in _lookups(name, args):
            if id(index) in self._places:
                place, offset = self._places[id(index)]
                size = table.shape[dim] - offset
                self.sizes[place] = max(1, min(self.sizes.get(place, size), size))
        if args and id(args[0]) in self._places:
            place, offset = self._places[id(args[0])]
            shifts = name in {"add", "sub"} and isinstance(args[1], int)
            if shifts:
                offset += args[1] if name == "add" else -args[1]
            if shifts or name in _HANDING_ON:
                for tensor in result if isinstance(result, (list, tuple)) else [result]:
                    self._places[id(tensor)] = (place, offset)
                    self._kept.append(tensor)
        return result


def _lookups(name: str, args: Sequence[Any]) -> list[tuple[Tensor, int, object]]:
    """Return the tables that an operator reads, with dimension and indices."""
    if name in {"embedding", "_embedding_bag", "_embedding_bag_forward_only"}:
        return [(args[0], 0, args[1])]
    if name in {"index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_"}:
        return [(args[0], args[1], args[2])]
    if name in {"index", "_unsafe_index"}:
        return [(args[0], dim, index) for dim, index in enumerate(args[1]) if index is not None]
    return []


def other_sizes(lengths: Mapping[str, int], accepted: Callable[[Mapping[str, int]], bool]) -> Iterator[dict[str, int]]:
    """Yield other sizes than the sample's, those first that tell most."""
    # A window or a table of the sample's size shows itself best at a larger size that is no multiple. Tables of places
    # end at the sample, and some modules take multiples of a patch alone.
    tried = [dict(lengths)]
    columns = [(n + n // 2 + 1, max(1, n // 2), None, n + 1, 2 * n, 3 * n, 4 * n) for n in lengths.values()]
    for column in zip(*columns, strict=True):
        sizes = smallest_sizes(lengths, accepted) if column[0] is None else dict(zip(lengths, column, strict=True))
        if sizes not in tried:
            tried.append(sizes)
            yield sizes


def smallest_sizes(lengths: Mapping[str, int], accepted: Callable[[Mapping[str, int]], bool]) -> dict[str, int]:
    """Return 1 for all sizes, or the smallest that are accepted, as divisors of the sample's and bisection tell."""
    low, share = 0, max(1, math.gcd(*lengths.values()))
    for part in (k for k in range(1, share + 1) if share % k == 0):
        if accepted({name: n // share * part for name, n in lengths.items()}):
            break
        low = part
    while len(lengths) == 1 and part - low > 1:
        middle = (low + part) // 2
        low, part = (low, middle) if accepted(dict.fromkeys(lengths, middle)) else (middle, part)
    return {name: n // share * part for name, n in lengths.items()}


def resized(call: Call, shapes: Sequence[Sequence[int | str | None]], sizes: Mapping[str, int]) -> tuple[Tensor, ...]:
    """Return tensors with other sizes of open dimensions, those that are sums of some included; entries repeat."""
    lengths = {**sample_lengths(call, shapes), **sizes}
    tensors = []
    for tensor, shape in zip(call.tensors, shapes, strict=True):
        for dim, name in enumerate(shape):
            parts = sum_of(name)
            if any(part in sizes for part in parts):
                length = sum(lengths[part] for part in parts)
                if not tensor.shape[dim]:  # an empty cache
                    tensor = tensor.new_zeros([*tensor.shape[:dim], 1, *tensor.shape[dim + 1 :]])
                tensor = tensor.index_select(dim, torch.arange(length) % tensor.shape[dim])
        tensors.append(tensor)
    return tuple(tensors)


def at_least_two(call: Call, sizes: Sequence[OpenSize]) -> Call:
    """Return a call whose open sizes beside the batch are 2 or more: with 1 a graph would be made for broadcasting."""
    shapes = named_shapes(call, sizes)
    rows = {size.name for size in sizes if size.axis in call.batch_axes[size.place]}
    ones = {name for name, length in sample_lengths(call, shapes).items() if length == 1 and name not in rows}
    return replace(call, tensors=resized(call, shapes, dict.fromkeys(ones, 2)))
