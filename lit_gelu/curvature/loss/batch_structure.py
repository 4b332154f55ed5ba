"""What a batch is made of: containers, pieces, and which of these have one entry for each example."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

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
