"""What integer inputs may hold: token indices inside of the table that they reach, masks with both values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lit_gelu.export.inputs import Call

# Operators of torch that hand values on, and those that read a table by them, with the places of table, dimension and
# indices among the arguments.
_HANDING_ON = frozenset({
    "_to_copy", "_unsafe_view", "alias", "clamp", "clamp_min", "clone", "detach", "expand", "lift_fresh", "masked_fill",
    "permute", "select", "slice", "split", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view",
})  # fmt: skip
_PROBABILITY_OF_KEEPING = 0.7


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
    """Numbers of which only the sample says anything."""

    low: int  # the sample's smallest
    high: int  # the sample's largest

    def draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Return numbers between the sample's smallest and largest."""
        return torch.randint(self.low, self.high + 1, shape, generator=generator)


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
    reached = _tables(call, places, run)
    kinds: dict[int, Kind] = {}
    notes = []
    for i in places:
        tensor, name = call.tensors[i], call.names[i]
        low, high = int(tensor.min()), int(tensor.max())
        if i in reached:
            kinds[i] = Indices(reached[i])
        elif tensor.ndim and (tensor.dtype == torch.bool or (low >= 0 and high <= 1)):
            kinds[i] = Mask(int(tensor.double().mean() >= 0.5))
        elif low < high:
            kinds[i] = Between(low, high)
            notes.append(f"input {name!r} reaches no table: it was drawn from the sample's range, {low} to {high}.")
        else:
            notes.append(f"input {name!r} was not varied: it reaches no table, and is {low} all over the sample.")
    return kinds, notes


def usable(
    call: Call, kinds: Mapping[int, Kind], accepts: Callable[[Sequence[Tensor]], str]
) -> tuple[dict[int, Kind], list[str]]:
    """Return the inputs that the module can be run on with drawn values, and why the others cannot be varied."""
    kept: dict[int, Kind] = {}
    notes = []
    for place, kind in kinds.items():
        trouble = accepts(drawn(call.tensors, {**kept, place: kind}, torch.Generator().manual_seed(0)))
        if trouble:
            notes.append(f"input {call.names[place]!r} was not varied: with drawn values {trouble}.")
        else:
            kept[place] = kind
    return kept, notes


def drawn(tensors: Sequence[Tensor], kinds: Mapping[int, Kind], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return tensors with drawn values in the places of which it is known what they may hold."""
    return tuple(kinds[i].draw(t.shape, generator).to(t.dtype) if i in kinds else t for i, t in enumerate(tensors))


def untried(call: Call, kinds: Mapping[int, Kind], rows: int) -> list[str]:
    """Say of which tables a batch tries only a part."""
    shapes = call.resized(rows)
    return [
        f"input {call.names[i]!r}: {shapes[i].numel():,} of {kind.size:,} indices were tried."
        for i, kind in kinds.items()
        if isinstance(kind, Indices) and shapes[i].numel() < kind.size
    ]


def _tables(call: Call, places: Sequence[int], run: Callable[[Sequence[Tensor]], object]) -> dict[int, int]:
    """Return the size of the smallest table that each input reaches."""
    tensors = [t.clone() for t in call.tensors]  # one tensor may be two inputs
    reach = _Reach({i: tensors[i] for i in places})
    with reach:
        run(tensors)
    return reach.sizes


class _Reach(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows inputs through a module to the tables that they are indices of."""

    def __init__(self, inputs: Mapping[int, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[int, int] = {}
        # By the tensor's identity: the input's place, and what was added to it. The tensors are kept, so that no other
        # one gets their identity.
        self._known = {id(tensor): (place, 0) for place, tensor in inputs.items()}
        self._kept: list[object] = list(inputs.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and note what it does to the inputs."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        for table, dim, index in _lookups(name, args):
            self._reached(index, table.shape[dim])
        known = self._known.get(id(args[0])) if args else None
        if known is not None:
            place, offset = known
            if name in _HANDING_ON:
                self._know(result, place, offset)
            elif name in {"add", "sub"} and isinstance(args[1], int):
                self._know(result, place, offset + (args[1] if name == "add" else -args[1]))
        return result

    def _know(self, result: object, place: int, offset: int) -> None:
        """Note that tensors hold an input's values."""
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            self._known[id(tensor)] = (place, offset)
            self._kept.append(tensor)

    def _reached(self, index: object, size: int) -> None:
        """Note that a table is read by an input."""
        known = self._known.get(id(index))
        if known is not None:
            place, offset = known
            self.sizes[place] = max(1, min(self.sizes.get(place, size - offset), size - offset))


def _lookups(name: str, args: Sequence[Any]) -> list[tuple[Tensor, int, object]]:
    """Return the tables that an operator reads, with dimension and indices."""
    if name in {"embedding", "_embedding_bag", "_embedding_bag_forward_only"}:
        return [(args[0], 0, args[1])]
    if name in {"index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_"}:
        return [(args[0], args[1], args[2])]
    if name in {"index", "_unsafe_index"}:
        return [(args[0], dim, index) for dim, index in enumerate(args[1]) if index is not None]
    return []
