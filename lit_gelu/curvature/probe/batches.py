"""What a batch is made of, how many examples it has, a part of it, and what of it a model's ``forward`` takes."""

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lit_gelu.errors import ArgumentError
from lit_gelu.sandbox import evaluation_sandbox, input_sample_of, isolated_random_state

FEW = 4
"""As many tensors in a list, or fewer, can be the fields of a batch: image, depth, mask, target."""

PLAIN = (str, bytes, int, float, type(None))

ROWS = 2
"""Of an input sample."""


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
    if names := field_names(batch):
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
    packed = any(isinstance(leaf, PackedSequence) for leaf in leaves(batch))
    if batch_size is None or packed:
        kind = PackedSequence if packed else type(batch)
        raise ArgumentError(
            f"No part can be taken of a batch of type {kind.__name__}: its examples cannot be told. Accepted are "
            "tensors in tuples, lists, mappings and dataclasses. Give fraction=None, which takes the whole batch."
        )

    def cut(piece: Any) -> Any:
        tensor = isinstance(piece, Tensor)
        counted = piece.ndim > 0 and len(piece) == batch_size if tensor else holds_an_example_each(piece, batch_size)
        return piece[:count] if counted else piece

    return rebuilt(batch, cut, partial(holds_an_example_each, batch_size=batch_size))


def part_size(batch: Any, fraction: float | None, least: int = 2) -> int | None:
    """Return how many examples of a batch a probe is to use: a share rounded up, else all of them."""
    batch_size = count_examples(batch)
    if batch_size is None or fraction is None:
        return batch_size
    # Batch normalisation has nothing to normalise in one example. What may be fields or images of as many channels is
    # used whole, which is right for both.
    few = FEW if has_few_of_either_kind(batch) else 2
    return min(batch_size, max(least, few, math.ceil(batch_size * fraction)))


def clone_batch(batch: Any) -> Any:
    """Return the batch with containers, tensors and objects of its own, as far as these can be copied."""
    return rebuilt(batch, _copied_leaf)


def _copied_leaf(piece: Any) -> Any:
    if isinstance(piece, Tensor):
        return piece.clone()
    if isinstance(piece, PLAIN):
        return piece
    try:
        return copy.deepcopy(piece)
    except (TypeError, RuntimeError):  # it holds a lock, a file or a generator, which cannot be copied
        return piece


def forward_inputs(batch: Any, model: nn.Module) -> Any:
    """Return the first rows of a batch's inputs; ``None`` where its form does not tell them from the targets."""
    if isinstance(batch, Tensor):
        return batch[:ROWS]
    if isinstance(batch, Mapping):
        parameters = inspect.signature(model.forward).parameters
        named = {name: value for name, value in batch.items() if name in parameters and isinstance(value, Tensor)}
        return {name: value[:ROWS] for name, value in named.items()} or None
    if isinstance(batch, list | tuple):
        count = max(1, _required(model))
        inputs = tuple(value[:ROWS] for value in batch[:count] if isinstance(value, Tensor))
        if len(inputs) == count:
            return inputs if count > 1 else inputs[0]
    return None


def forward_sample(model: nn.Module, batch: Any, input_sample: Any = None) -> Any:
    """Return `input_sample_of` a model, or the inputs of a batch if ``forward`` runs on them, or ``None``."""
    if (sample := input_sample_of(model, input_sample)) is not None:
        return sample
    for candidate in _candidates(batch, model):
        with isolated_random_state(model), evaluation_sandbox(model):
            try:
                if isinstance(candidate, Mapping):
                    model(**candidate)
                else:
                    model(*(candidate if isinstance(candidate, list | tuple) else (candidate,)))
            except Exception:  # noqa: BLE001, S112 - of a user's module: many a LightningModule has no ``forward``
                continue
        return candidate
    return None


def _candidates(batch: Any, model: nn.Module) -> Iterator[Any]:
    """Yield what of a batch may be a model's inputs, as ``example_input_array`` has them, the likely ones first."""
    if (inputs := forward_inputs(batch, model)) is not None:
        yield inputs
    nested = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if not isinstance(nested, Mapping | list | tuple):
        return
    try:
        rows = take_examples(nested, ROWS)
    except ArgumentError:  # it has no tensors, or packed ones
        return
    if _required(model) == 1:
        yield (rows,)
    yield dict(rows) if isinstance(rows, Mapping) else tuple(rows)


def _required(model: nn.Module) -> int:
    """Return how many arguments by position ``forward`` cannot do without."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return sum(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters)
