"""The order of samples of every replica: the one that its own loader would draw."""

from collections.abc import Iterable

import torch
from torch import Tensor


class BatchOrder:
    """Draws epochs as a shuffling `ResumableDataLoader` without its last, smaller batch does.

    Args:
        samples: Size of the training set.
        batch_size: Samples in a batch.
    """

    def __init__(self, samples: int, batch_size: int) -> None:
        self.samples, self.batch_size = samples, batch_size

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return self.samples // self.batch_size

    def epoch(self, generators: Iterable[torch.Generator]) -> Tensor:
        """Return the samples of an epoch, ``[steps, replicas, batch]``, each replica's out of its own stream."""
        return torch.stack([self._rows(generator) for generator in generators], dim=1)

    def _rows(self, generator: torch.Generator) -> Tensor:
        """Draw two numbers, as the iterator of a loader and its sampler do, of which the second seeds the order."""
        # The first is for worker processes, also where there are none.
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(seed))
        return order[: self.steps * self.batch_size].view(self.steps, self.batch_size)
