"""Other sizes of the dimensions that a file leaves open, beside the batch."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lit_gelu.export.inputs import Call


def other_lengths(
    call: Call, shapes: Sequence[Sequence[int | str]], accepts: Callable[[Sequence[Tensor]], str]
) -> tuple[list[Call], list[str]]:
    """Return the sample in other sizes: half of each open dimension, one more, and twice as many.

    Args:
        call: The sample.
        shapes: Of the file's inputs; a size that is open is a name, and one name has one size.
        accepts: Runs the module on tensors; returns what is wrong, or nothing.

    Returns:
        The samples that the module takes, and why others are none.
    """
    if not _resized(call, shapes, lambda size: size):
        return [], []
    found, notes = [], []
    for change in (lambda size: max(1, size // 2), lambda size: size + 1, lambda size: 2 * size):
        tensors = _resized(call, shapes, change)
        trouble = accepts(tensors)
        if trouble:
            sizes = ", ".join(f"{name} {list(t.shape)}" for name, t in zip(call.names, tensors, strict=True))
            notes.append(f"the sizes {sizes} were not tried: with them {trouble}.")
        else:
            found.append(replace(call, tensors=tensors))
    return found, notes


def _resized(call: Call, shapes: Sequence[Sequence[int | str]], change: Callable[[int], int]) -> tuple[Tensor, ...]:
    """Return tensors with other sizes of the open dimensions; nothing if none is open. Entries are repeated."""
    first = next(i for i, batched in enumerate(call.batched) if batched)
    batch, is_open, tensors = shapes[first][0], False, []
    for tensor, shape in zip(call.tensors, shapes, strict=True):
        for dim, size in enumerate(shape):
            if isinstance(size, str) and size != batch:
                is_open = True
                places = torch.arange(change(tensor.shape[dim])) % tensor.shape[dim]
                tensor = tensor.index_select(dim, places)
        tensors.append(tensor)
    return tuple(tensors) if is_open else ()
