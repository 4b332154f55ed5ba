"""What a batch is made of, how many examples it has, and a part of it."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lit_gelu.curvature.errors import LossCurvatureError

FEW = 4
"""As many tensors in a list, or fewer, can be the fields of a batch: image, depth, mask, target."""

PLAIN = (str, bytes, int, float, type(None))


def leaves(batch: Any) -> Iterator[Any]:
    """Go through what is in a batch, in its order; a list of examples and a packed sequence are one piece.

    Args:
        batch: Tensors and anything else, in any nesting of tuples, lists, mappings and dataclasses.

    Yields:
        What holds nothing further.

    Example:
        >>> list(leaves({"a": (1, [2]), "b": "c"}))
        [1, 2, 'c']
    """
    children = [] if isinstance(batch, PackedSequence) or is_list_of_examples(batch) else children_of(batch)
    for child in children:
        yield from leaves(child)
    if not children:
        yield batch


def is_record(batch: Any) -> bool:
    """Return whether a batch is a dataclass, made.

    Args:
        batch: Anything.

    Returns:
        Whether it is; a dataclass itself is not.
    """
    return dataclasses.is_dataclass(batch) and not isinstance(batch, type)


def field_names(batch: Any) -> tuple[str, ...]:
    """Return the names of a named tuple's or a dataclass's fields.

    Args:
        batch: Anything.

    Returns:
        The names; none of anything else.

    Example:
        >>> from collections import namedtuple
        >>> field_names(namedtuple("Batch", "x y")(1, 2))
        ('x', 'y')
    """
    if is_record(batch):
        return tuple(field.name for field in dataclasses.fields(batch))
    return tuple(batch._fields) if isinstance(batch, tuple) and hasattr(batch, "_fields") else ()


def refilled(batch: Any, values: dict[Any, Any]) -> Any:
    """Return a container of the same type with other values.

    Args:
        batch: A mapping, named tuple or dataclass, frozen ones included.
        values: By its keys or by the names of its fields, all of them in their order.

    Returns:
        A new container; for a mapping that cannot be changed the values themselves.

    Example:
        >>> from collections import UserDict
        >>> refilled(UserDict(a=1), {"a": 2})
        {'a': 2}
    """
    if isinstance(batch, tuple):
        return type(batch)(*values.values())
    if isinstance(batch, Mapping) and not isinstance(batch, MutableMapping):
        return values
    changed = copy.copy(batch)
    if isinstance(batch, Mapping):
        changed.update(values)
        return changed
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed


def children_of(batch: Any) -> list[Any]:
    """Return what a container of a batch holds; nothing of a leaf.

    Args:
        batch: As in `leaves`.

    Returns:
        Its entries, without names.

    Example:
        >>> children_of({"a": (1, 2)}), children_of("leaf")
        ([(1, 2)], [])
    """
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
    """Return whether a list or tuple of tensors has an example in each, and not a field of a batch.

    The tensors have one dtype and number of dimensions, and no two first sizes agree; or there are more than four of
    them, and their first sizes differ (sequences) or are less than their number (the channels of images).

    Args:
        batch: Anything.

    Returns:
        Whether it is such a list.

    Example:
        >>> import torch
        >>> is_list_of_examples([torch.zeros(3, 8, 8)] * 16), is_list_of_examples([torch.zeros(16, 3, 8, 8)] * 2)
        (True, False)
    """
    sizes = _first_sizes(batch)
    distinct = len(set(sizes))
    if not sizes or len(sizes) <= FEW:
        return 1 < distinct == len(sizes)
    return distinct > 1 or sizes[0] < len(sizes)


def has_few_of_either_kind(batch: Any) -> bool:
    """Return whether a batch holds a list of up to four tensors that may be fields as well as examples.

    Args:
        batch: As in `leaves`.

    Returns:
        Whether it does.

    Example:
        >>> import torch
        >>> has_few_of_either_kind([torch.zeros(3, 8, 8), torch.zeros(3, 9, 9)])
        True
    """
    sizes = _first_sizes(batch)
    few = bool(sizes) and len(sizes) <= FEW and (max(sizes) <= FEW or is_list_of_examples(batch))
    return few or any(map(has_few_of_either_kind, children_of(batch)))


def holds_an_example_each(batch: Any, whole: int) -> bool:
    """Return whether a list or tuple has one plain value, mapping, dataclass or tensor for each example.

    Args:
        batch: Anything.
        whole: How many examples the whole batch has.

    Returns:
        Whether it does. Mappings whose tensors are all as long as the batch are batches themselves, of several loaders.

    Example:
        >>> holds_an_example_each(("a", "b", None), 3), holds_an_example_each([{"id": 1}], 1)
        (True, True)
    """
    if not isinstance(batch, (tuple, list)) or hasattr(batch, "_fields") or len(batch) != whole:
        return False
    if is_list_of_examples(batch) or all(isinstance(child, PLAIN) for child in batch):
        return True
    lengths = {len(leaf) for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0}
    return all(isinstance(child, Mapping) or is_record(child) for child in batch) and lengths != {whole}


def rebuilt(batch: Any, change: Callable[[Any], Any], is_piece: Callable[[Any], bool] = lambda _: False) -> Any:
    """Return a batch of the same kind, in containers of its own, of what ``change`` makes of each piece.

    Args:
        batch: As in `leaves`.
        change: From a piece to what takes its place.
        is_piece: Tells containers that are changed as one piece.

    Returns:
        A batch of the same kind; a mapping that cannot be changed becomes a dict.

    Example:
        >>> rebuilt({"a": (1, [2])}, lambda piece: piece * 10)
        {'a': (10, [20])}
    """
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
    """Return how many examples a batch has: the length of the first dimension of its first tensor that has one.

    Of a list of examples (see `take_examples`) that comes before any tensor it is the list's length, and of a
    ``PackedSequence`` the number of its sequences.

    Args:
        batch: A tensor, or tensors in any nesting of tuples, lists, mappings and dataclasses.

    Returns:
        The number; ``None`` if there is none of these.

    Example:
        >>> import torch
        >>> count_examples({"text": ["a", "b"], "x": torch.zeros(2, 3)})
        2
        >>> count_examples([torch.zeros(3, 8, 8 + width % 2) for width in range(16)])
        16
    """
    for leaf in leaves(batch):
        if isinstance(leaf, PackedSequence):
            return int(leaf.batch_sizes[0])
        if is_list_of_examples(leaf) or (isinstance(leaf, Tensor) and leaf.ndim > 0):
            return len(leaf)
    return None


def take_examples(batch: Any, count: int) -> Any:
    """Return the first examples of a batch.

    What is cut: every tensor whose first dimension is as long as the batch, and every list or tuple of that length that
    holds plain values (strings, numbers, ``None``), mappings or dataclasses. All else stays: scalars, and tensors of
    another length, such as class weights.

    A list or tuple of tensors of one dtype and number of dimensions is a list of examples, and cut by its own length,
    where its tensors cannot be fields of one batch: no two first sizes agree, or there are more than four tensors, and
    their first sizes differ (sequences) or are less than their number (the channels of images).

    Args:
        batch: As in `count_examples`.
        count: How many, from 1; with as many as there are, or more, the batch itself is returned.

    Returns:
        A batch of the same kind; its tensors are views.

    Raises:
        LossCurvatureError: If the batch is of a kind whose examples cannot be told, or holds a ``PackedSequence``.

    Example:
        >>> import torch
        >>> x, names = take_examples((torch.arange(3), ["a", "b", "c"]), 2)
        >>> x, names
        (tensor([0, 1]), ['a', 'b'])
    """
    whole = count_examples(batch)
    if whole is not None and count >= whole:
        return batch
    whole = _countable(batch)
    return rebuilt(batch, partial(_cut, whole=whole, count=count), partial(holds_an_example_each, whole=whole))


def repeat_examples(batch: Any) -> Any:
    """Return a batch in which every example comes twice.

    Args:
        batch: As in `count_examples`.

    Returns:
        A batch of the same kind: what `take_examples` would cut is there twice, one after the other.

    Raises:
        LossCurvatureError: As `take_examples`.

    Example:
        >>> import torch
        >>> repeat_examples((torch.arange(2), ["a", "b"]))
        (tensor([0, 1, 0, 1]), ['a', 'b', 'a', 'b'])
    """
    whole = _countable(batch)
    return rebuilt(batch, partial(_twice, whole=whole), partial(holds_an_example_each, whole=whole))


def part_size(batch: Any, fraction: float | None, samples: int | None, least: int = 2) -> int | None:
    """Return how many examples of a batch a probe is to use.

    Args:
        batch: As in `count_examples`.
        fraction: Its share of the batch, rounded up to whole examples, and to ``least``. ``None`` for the number
            ``samples``. Up to four tensors in a list whose first sizes are up to four may be fields or images of so
            many channels: they are used whole, which is right for both.
        samples: A number of examples; ``None`` together with ``fraction=None`` for the whole batch.
        least: Examples that a share has, if the batch has them: batch normalisation has nothing to normalise in one.

    Returns:
        The number; ``None`` if the batch's own number cannot be told.

    Example:
        >>> import torch
        >>> part_size(torch.arange(20), 1 / 8, None)
        3
        >>> part_size(torch.arange(20), 1 / 8, None, least=32)
        20
    """
    whole = count_examples(batch)
    if whole is None or (fraction is None and samples is None):
        return whole
    if samples is not None:
        return min(whole, samples)
    few = FEW if has_few_of_either_kind(batch) else 2
    return min(whole, max(least, few, math.ceil(whole * (fraction or 1.0))))


def part_of(batch: Any, fraction: float | None, samples: int | None, least: int = 2) -> Any:
    """Return the part of a batch that a probe is to use.

    Args:
        batch: As in `count_examples`.
        fraction: As in `part_size`.
        samples: As in `part_size`.
        least: As in `part_size`.

    Returns:
        The first examples.

    Raises:
        LossCurvatureError: As `take_examples`, unless the whole batch is asked for.

    Example:
        >>> import torch
        >>> part_of(torch.arange(20), 1 / 8, None)
        tensor([0, 1, 2])
    """
    if fraction is None and samples is None:
        return batch
    return take_examples(batch, part_size(batch, fraction, samples, least) or 1)


def copy_containers(batch: Any) -> Any:
    """Return the batch in lists, mappings and dataclasses of its own, so that one who pops an entry does it there.

    Args:
        batch: As in `count_examples`.

    Returns:
        A batch of the same kind, of the same tensors.

    Example:
        >>> batch = {"labels": [1, 2]}
        >>> _ = copy_containers(batch).pop("labels")
        >>> batch
        {'labels': [1, 2]}
    """
    return rebuilt(batch, lambda leaf: leaf)


def clone_batch(batch: Any) -> Any:
    """Return the batch with containers, tensors and objects of its own: what happens to the other does not show in it.

    Args:
        batch: Anything; what can be neither taken apart nor copied is shared.

    Returns:
        A batch of the same kind.

    Example:
        >>> import torch
        >>> x = torch.ones(2)
        >>> (clone,) = clone_batch((x,))
        >>> _ = x.div_(255)
        >>> clone
        tensor([1., 1.])
    """
    return rebuilt(batch, _own)


def check_part(fraction: float | None, samples: int | None) -> None:
    """Refuse a part that is none.

    Args:
        fraction: As in `part_of`.
        samples: As in `part_of`.

    Raises:
        LossCurvatureError: If both are given, or one is out of range.
    """
    if fraction is not None and samples is not None:
        raise LossCurvatureError(f"{fraction=}, {samples=}: give one of the two, or none for whole batches.")
    if fraction is not None and not 0 < fraction <= 1:
        raise LossCurvatureError(f"{fraction=} is not accepted. Give a share of the batch, above 0 and up to 1.")
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise LossCurvatureError(f"{samples=} is not accepted. Give a positive number of examples.")


def _countable(batch: Any) -> int:
    """Return how many examples a batch has that can be taken apart.

    Raises:
        LossCurvatureError: If it cannot.
    """
    whole = count_examples(batch)
    packed = any(isinstance(leaf, PackedSequence) for leaf in leaves(batch))
    if whole is None or packed:
        kind = PackedSequence if packed else type(batch)
        raise LossCurvatureError(
            f"No part can be taken of a batch of type {kind.__name__}: its examples cannot be told. Accepted are "
            "tensors in tuples, lists, mappings and dataclasses. Give fraction=None, which takes the whole batch."
        )
    return whole


def _twice(piece: Any, whole: int) -> Any:
    """Return one piece of a batch with ``whole`` examples, each twice."""
    if isinstance(piece, Tensor):
        return torch.cat([piece, piece]) if piece.ndim > 0 and len(piece) == whole else piece
    return piece + piece if holds_an_example_each(piece, whole) else piece


def _cut(piece: Any, whole: int, count: int) -> Any:
    """Return the first of ``whole`` examples of one piece of a batch."""
    if isinstance(piece, Tensor):
        return piece[:count] if piece.ndim > 0 and len(piece) == whole else piece
    return piece[:count] if holds_an_example_each(piece, whole) else piece


def _own(piece: Any) -> Any:
    """Return a copy of what is no container."""
    if isinstance(piece, Tensor):
        return piece.clone()
    if isinstance(piece, PLAIN):
        return piece
    try:
        return copy.deepcopy(piece)
    except (TypeError, RuntimeError):  # it holds a lock, a file or a generator: no one copies that
        return piece
