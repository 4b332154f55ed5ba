"""The inputs of a member's batches, gathered from all samples: of several steps at once where they are small."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lit_gelu.replicas.written.workspace import ALIGNED

_AT_ONCE = 2**16  # numbers that are gathered at once, so that they stay in the processor's cache


def gathered(samples: Tensor, rows: Tensor, kept: Callable[..., Tensor]) -> Iterator[Tensor]:
    """Yield the inputs of every step, ``[batch, features]``, which the next one may overwrite.

    Args:
        samples: All of them, ``[samples, features]``.
        rows: Which ones a step takes, ``[steps, batch]``.
        kept: Returns a tensor to write to, by name and sizes.
    """
    (steps, batch), features = rows.shape, samples.shape[1]
    size = batch * features
    are_aligned = size * samples.element_size() % ALIGNED == 0  # a batch begins as one does that has its own memory
    together = min(steps, max(1, _AT_ONCE // size)) if are_aligned else 1
    taken = kept("inputs", together, batch, features, dtype=samples.dtype)
    for some in torch.split(rows, together):
        few = taken[: len(some)]
        torch.index_select(samples, 0, some.flatten(), out=few.view(-1, features))
        yield from few.unbind()
