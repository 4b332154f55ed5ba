"""How many examples a batch has, and a part of it."""

import copy
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lit_gelu.curvature.loss.batch_structure import (
    FEW,
    PLAIN,
    has_few_of_either_kind,
    holds_an_example_each,
    is_list_of_examples,
    leaves,
    rebuilt,
)
from lit_gelu.curvature.loss.errors import LossCurvatureError


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
