"""How many examples a batch has, and a part of it."""

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor

from lit_gelu.curvature.loss.errors import LossCurvatureError


def count_examples(batch: Any) -> int | None:
    """Return how many examples a batch has: the length of the first dimension of its first tensor that has one.

    Args:
        batch: A tensor, or tensors in any nesting of tuples, lists, mappings and dataclasses.

    Returns:
        The number; ``None`` if there is no such tensor.

    Example:
        >>> import torch
        >>> count_examples({"text": ["a", "b"], "x": torch.zeros(2, 3)})
        2
    """
    for leaf in _leaves(batch):
        if isinstance(leaf, Tensor) and leaf.ndim > 0:
            return len(leaf)
    return None


def take_examples(batch: Any, count: int) -> Any:
    """Return the first examples of a batch.

    What is cut: every tensor whose first dimension is as long as the batch, and every list of plain values of that
    length. All else stays: scalars, and tensors of another length, such as class weights.

    Args:
        batch: As in `count_examples`.
        count: How many, from 1; with as many as there are, or more, the batch itself is returned.

    Returns:
        A batch of the same kind; its tensors are views.

    Raises:
        LossCurvatureError: If the batch is of a kind whose examples cannot be told.

    Example:
        >>> import torch
        >>> x, names = take_examples((torch.arange(3), ["a", "b", "c"]), 2)
        >>> x, names
        (tensor([0, 1]), ['a', 'b'])
    """
    whole = count_examples(batch)
    if whole is None:
        raise LossCurvatureError(
            f"No part can be taken of a batch of type {type(batch).__name__}: its examples cannot be told. Accepted "
            "are tensors in tuples, lists, mappings and dataclasses. Use the whole batch, or give a smaller one."
        )
    return batch if count >= whole else _cut(batch, whole, count)


def part_of(batch: Any, fraction: float | None, samples: int | None) -> Any:
    """Return the part of a batch that a probe is to use.

    Args:
        batch: As in `count_examples`.
        fraction: Its share of the batch, rounded up to whole examples, and to two: batch normalisation has nothing to
            normalise in one. ``None`` for the number ``samples``.
        samples: A number of examples; ``None`` together with ``fraction=None`` for the whole batch.

    Returns:
        The first examples.

    Example:
        >>> import torch
        >>> part_of(torch.arange(20), 1 / 8, None)
        tensor([0, 1, 2])
    """
    if fraction is None and samples is None:
        return batch
    whole = count_examples(batch) or 0
    return take_examples(batch, samples if samples is not None else max(2, math.ceil(whole * (fraction or 1.0))))


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
    return _cut(batch, whole=-1, count=0)


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


def _leaves(batch: Any) -> Iterator[Any]:
    """Go through what is in a batch, in its order."""
    if isinstance(batch, Mapping):
        children: Any = batch.values()
    elif isinstance(batch, (tuple, list)):
        children = batch
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        children = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    else:
        yield batch
        return
    for child in children:
        yield from _leaves(child)


def _cut(batch: Any, whole: int, count: int) -> Any:
    """Return the first of ``whole`` examples of one piece of a batch."""
    if isinstance(batch, Tensor):
        return batch[:count] if batch.ndim > 0 and len(batch) == whole else batch
    if isinstance(batch, Mapping):
        return _cut_mapping(batch, whole, count)
    if isinstance(batch, (tuple, list)):
        plain = all(isinstance(child, (str, bytes, int, float)) for child in batch)
        if plain and isinstance(batch, list) and len(batch) == whole:
            return batch[:count]
        pieces = [_cut(child, whole, count) for child in batch]
        return type(batch)(*pieces) if hasattr(batch, "_fields") else type(batch)(pieces)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        changed = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(changed, field.name, _cut(getattr(batch, field.name), whole, count))  # a frozen one, too
        return changed
    return batch


def _cut_mapping(batch: Mapping[Any, Any], whole: int, count: int) -> Mapping[Any, Any]:
    """Return a mapping of the same type, if that can be changed, with the first examples."""
    pieces = {key: _cut(value, whole, count) for key, value in batch.items()}
    if not isinstance(batch, MutableMapping):
        return pieces
    changed = copy.copy(batch)
    changed.update(pieces)
    return changed
