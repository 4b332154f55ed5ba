"""What a batch is made of, how many examples it has, and a part of it."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lit_gelu.errors import ArgumentError

FEW = 4
"""As many tensors in a list, or fewer, can be the fields of a batch: image, depth, mask, target."""

PLAIN = (str, bytes, int, float, type(None))


def leaves(batch: Any) -> Iterator[Any]:
    """Go through what is in a batch, in its order; a list of examples and a packed sequence are one piece."""
    children = [] if isinstance(batch, PackedSequence) or is_list_of_examples(batch) else children_of(batch)
    for child in children:
        yield from leaves(child)
    if not children:
        yield batch


def is_record(batch: Any) -> bool:
    """Return whether a batch is a dataclass, made."""
    return dataclasses.is_dataclass(batch) and not isinstance(batch, type)


def field_names(batch: Any) -> tuple[str, ...]:
    """Return the names of a named tuple's or a dataclass's fields."""
    if is_record(batch):
        return tuple(field.name for field in dataclasses.fields(batch))
    return tuple(batch._fields) if isinstance(batch, tuple) and hasattr(batch, "_fields") else ()


def refilled(batch: Any, values: dict[Any, Any]) -> Any:
    """Return a container of the same type, frozen ones included, with other values for all of its entries, in order."""
    if isinstance(batch, tuple):
        return type(batch)(*values.values())
    if isinstance(batch, Mapping) and not isinstance(batch, MutableMapping):
        return values  # no one can fill it
    changed = copy.copy(batch)
    if isinstance(batch, Mapping):
        changed.update(values)
        return changed
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed


def children_of(batch: Any) -> list[Any]:
    """Return what a container of a batch holds; nothing of a leaf."""
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, (tuple, list)):
        return list(batch)
    return [getattr(batch, name) for name in field_names(batch)]


def _first_sizes(batch: Any) -> list[int]:
    """Return the first sizes of a list or tuple of tensors of one dtype and number of dimensions; of another, none."""
    if not isinstance(batch, (tuple, list)) or hasattr(batch, "_fields") or len(batch) < 2:
        return []
    if not all(isinstance(child, Tensor) and child.ndim > 0 for child in batch):
        return []
    return [len(child) for child in batch] if len({(child.dtype, child.ndim) for child in batch}) == 1 else []


def is_list_of_examples(batch: Any) -> bool:
    """Return whether a list or tuple of tensors has an example in each, and not a field of a batch."""
    # Its tensors cannot be fields of one batch: no two first sizes agree, or there are more than four tensors, and
    # their first sizes differ (sequences) or are less than their number (the channels of images).
    sizes = _first_sizes(batch)
    distinct = len(set(sizes))
    if not sizes or len(sizes) <= FEW:
        return 1 < distinct == len(sizes)
    return distinct > 1 or sizes[0] < len(sizes)


def has_few_of_either_kind(batch: Any) -> bool:
    """Return whether a batch holds a list of up to four tensors that may be fields as well as examples."""
    sizes = _first_sizes(batch)
    few = bool(sizes) and len(sizes) <= FEW and (max(sizes) <= FEW or is_list_of_examples(batch))
    return few or any(map(has_few_of_either_kind, children_of(batch)))


def holds_an_example_each(batch: Any, batch_size: int) -> bool:
    """Return whether a list or tuple has one plain value, mapping, dataclass or tensor for each example."""
    if not isinstance(batch, (tuple, list)) or hasattr(batch, "_fields") or len(batch) != batch_size:
        return False
    if is_list_of_examples(batch) or all(isinstance(child, PLAIN) for child in batch):
        return True
    # Mappings whose tensors are all as long as the batch are batches themselves, of several loaders.
    lengths = {len(leaf) for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0}
    return all(isinstance(child, Mapping) or is_record(child) for child in batch) and lengths != {batch_size}


def rebuilt(batch: Any, change: Callable[[Any], Any], is_piece: Callable[[Any], bool] = lambda _: False) -> Any:
    """Return a batch of the same kind, in containers of its own, of what ``change`` makes of each piece."""
    if is_piece(batch):
        return change(batch)
    if isinstance(batch, Mapping):
        return refilled(batch, {key: rebuilt(value, change, is_piece) for key, value in batch.items()})
    names = field_names(batch)
    if names:
        return refilled(batch, {name: rebuilt(getattr(batch, name), change, is_piece) for name in names})
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        return type(batch)([rebuilt(child, change, is_piece) for child in batch])
    return change(batch)


def count_examples(batch: Any) -> int | None:
    """Return how many examples a batch has: the length of the first dimension of its first tensor that has one."""
    # Of a list of examples that comes before any tensor it is the list's length.
    for leaf in leaves(batch):
        if isinstance(leaf, PackedSequence):
            return int(leaf.batch_sizes[0])
        if is_list_of_examples(leaf) or (isinstance(leaf, Tensor) and leaf.ndim > 0):
            return len(leaf)
    return None


def take_examples(batch: Any, count: int) -> Any:
    """Return the first examples of a batch, from 1, as views; the batch itself where it has no more."""
    # What is cut: every tensor whose first dimension is as long as the batch, every list or tuple of that length that
    # holds plain values, mappings or dataclasses, and lists of examples. All else stays: scalars, and tensors of
    # another length, such as class weights.
    batch_size = count_examples(batch)
    if batch_size is not None and count >= batch_size:
        return batch
    return _changed_by_example(batch, lambda piece: piece[:count])


def _changed_by_example(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a batch in which every piece is changed that has something for each example."""
    batch_size = _countable(batch)

    def changed(piece: Any) -> Any:
        tensor = isinstance(piece, Tensor)
        counted = piece.ndim > 0 and len(piece) == batch_size if tensor else holds_an_example_each(piece, batch_size)
        return change(piece) if counted else piece

    return rebuilt(batch, changed, partial(holds_an_example_each, batch_size=batch_size))


def part_size(batch: Any, fraction: float | None, samples: int | None, least: int = 2) -> int | None:
    """Return how many examples of a batch a probe is to use: a share rounded up, or a number; else all of them."""
    batch_size = count_examples(batch)
    if batch_size is None or (fraction is None and samples is None):
        return batch_size
    if samples is not None:
        return min(batch_size, samples)
    # Batch normalisation has nothing to normalise in one example. What may be fields or images of as many channels is
    # used whole, which is right for both.
    few = FEW if has_few_of_either_kind(batch) else 2
    return min(batch_size, max(least, few, math.ceil(batch_size * (fraction or 1.0))))


def part_of(batch: Any, fraction: float | None, samples: int | None, least: int = 2) -> Any:
    """Return the part of a batch that a probe is to use."""
    if fraction is None and samples is None:
        return batch
    return take_examples(batch, part_size(batch, fraction, samples, least) or 1)


def copy_containers(batch: Any) -> Any:
    """Return the batch in lists, mappings and dataclasses of its own, so that one who pops an entry does it there."""
    return rebuilt(batch, lambda leaf: leaf)


def clone_batch(batch: Any) -> Any:
    """Return the batch with containers, tensors and objects of its own, as far as these can be copied."""
    return rebuilt(batch, _copied_leaf)


def check_part(fraction: float | None, samples: int | None) -> None:
    """Refuse a share out of range, a number below 1, and both at once."""
    if fraction is not None and samples is not None:
        raise ArgumentError(f"{fraction=}, {samples=}: give one of the two, or none for whole batches.")
    if fraction is not None and not 0 < fraction <= 1:
        raise ArgumentError(f"{fraction=} is not accepted. Give a share of the batch, above 0 and up to 1.")
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise ArgumentError(f"{samples=} is not accepted. Give a positive number of examples.")


def _countable(batch: Any) -> int:
    """Return the number of examples in a batch that can be taken apart."""
    batch_size = count_examples(batch)
    packed = any(isinstance(leaf, PackedSequence) for leaf in leaves(batch))
    if batch_size is None or packed:
        kind = PackedSequence if packed else type(batch)
        raise ArgumentError(
            f"No part can be taken of a batch of type {kind.__name__}: its examples cannot be told. Accepted are "
            "tensors in tuples, lists, mappings and dataclasses. Give fraction=None, which takes the whole batch."
        )
    return batch_size


def _copied_leaf(piece: Any) -> Any:
    """Return a copy of anything that is not a container."""
    if isinstance(piece, Tensor):
        return piece.clone()
    if isinstance(piece, PLAIN):
        return piece
    try:
        return copy.deepcopy(piece)
    except (TypeError, RuntimeError):  # it holds a lock, a file or a generator, which cannot be copied
        return piece
