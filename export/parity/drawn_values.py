"""What inputs may hold: token indices inside of the table that they reach, masks with both values, other numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lit_gelu.export.inputs import Call

# Operators of torch that hand values on.
_HANDING_ON = frozenset({
    "_to_copy", "_unsafe_view", "alias", "clamp", "clamp_min", "clone", "detach", "expand", "lift_fresh", "masked_fill",
    "permute", "select", "slice", "split", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view",
})  # fmt: skip
_PROBABILITY_OF_KEEPING = 0.7
Trouble = Callable[[Sequence[Tensor]], str]  # says what is wrong with inputs, nothing if the module takes them


class Kind(Protocol):
    """What an input may hold."""

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Return a tensor of that."""
        ...


@dataclass(frozen=True)
class Indices:
    """Indices into a table."""

    size: int  # how many rows the table has

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
class Between:
    """Whole numbers of which only the sample says anything."""

    low: int  # the sample's smallest
    high: int  # the sample's largest

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Return numbers between the sample's smallest and largest."""
        return torch.randint(self.low, self.high + 1, shape, generator=generator)


@dataclass(frozen=True)
class OfSample:
    """Numbers that the sample holds, in any order and as often as it comes."""

    values: Tensor
    label = "sample's values"

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Return some of them."""
        known = self.values.flatten()
        return known[torch.randint(len(known), shape, generator=generator)]


@dataclass(frozen=True)
class Magnitudes:
    """Magnitudes of gaussian values."""

    label = "|gaussian|"

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Return some."""
        return torch.randn(shape, generator=generator).abs()


def drawn(tensors: Sequence[Tensor], kinds: Mapping[int, Kind], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return tensors with drawn values in the places of which it is known what they may hold."""
    return tuple(kinds[i].draw(t.shape, generator).to(t.dtype) if i in kinds else t for i, t in enumerate(tensors))


def input_kinds(
    call: Call, run: Callable[[Sequence[Tensor]], object], trouble: Trouble, rows: int, *, raw: bool
) -> tuple[dict[int, Kind], list[str]]:
    """Say what inputs may hold that are not to be gaussian, and what cannot be varied; raw pixels are none of these."""
    kinds, notes = integer_kinds(call, run, frozenset({0} if raw else ()))
    if trouble(call.tensors):  # on the sample already: drawn values cannot be judged
        return kinds, notes
    usable: dict[int, Kind] = {}
    for place, kind in kinds.items():
        refused = trouble(drawn(call.tensors, {**usable, place: kind}, torch.Generator().manual_seed(0)))
        if refused:
            notes.append(f"input {call.names[place]!r} was not varied: with drawn values {refused}.")
        else:
            usable[place] = kind
    shapes = [t.shape for t in call.resized(rows)]
    notes += [
        f"input {call.names[i]!r}: {shapes[i].numel():,} of {kind.size:,} indices were tried."
        for i, kind in usable.items()
        if isinstance(kind, Indices) and shapes[i].numel() < kind.size
    ]
    others, instead = ({}, []) if raw else _instead_of_gaussian(call, usable, trouble)
    return {**usable, **others}, [*notes, *instead]


def integer_kinds(
    call: Call, run: Callable[[Sequence[Tensor]], object], others: frozenset[int] = frozenset()
) -> tuple[dict[int, Kind], list[str]]:
    """Say what each integer input may hold."""
    # An input that is read as an index of a table (an embedding, table[i], gather, one-hot) holds indices of that
    # table. One that is Boolean, or 0 and 1 on the sample, is a mask. Any other holds numbers of the sample's range.
    whole = [not (t.is_floating_point() or t.is_complex()) and t.numel() > 0 for t in call.tensors]
    places = [i for i, is_whole in enumerate(whole) if is_whole and i not in others]
    if not places:
        return {}, []
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
            kinds[i] = Between(low, high)
            notes.append(f"input {name!r} reaches no table: it was drawn from the sample's range, {low} to {high}.")
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


def _instead_of_gaussian(call: Call, kinds: Mapping[int, Kind], trouble: Trouble) -> tuple[dict[int, Kind], list[str]]:
    """Return what to draw floating-point inputs from if the module takes no gaussian ones, such as for a logarithm."""
    floats = [i for i, t in enumerate(call.tensors) if t.is_floating_point() and t.numel() and i not in kinds]
    generator = torch.Generator().manual_seed(0)
    gaussian = [torch.randn(t.shape, generator=generator) if i in floats else t for i, t in enumerate(call.tensors)]
    refused = trouble(drawn(gaussian, kinds, torch.Generator().manual_seed(0))) if floats else ""
    if not refused:
        return {}, []
    varied = any(call.tensors[i].min() < call.tensors[i].max() for i in floats)
    others: dict[int, Kind] = {i: OfSample(call.tensors[i]) if varied else Magnitudes() for i in floats}
    if trouble(drawn(call.tensors, {**kinds, **others}, torch.Generator().manual_seed(0))):
        return {}, []
    what = "the sample's own" if varied else "their magnitudes"
    return others, [f"with gaussian values {refused}; {what} were drawn instead."]
