"""The order of samples of every replica: the one that its own loader would draw."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_gelu.data.seeded_order import order_of_epoch


class BatchOrder:
    """Draws epochs as the training loader of an `InMemoryDataModule` does.

    Args:
        samples: Size of the training set.
        batch_size: Samples in a batch.
        order: That of the data module.
    """

    def __init__(self, samples: int, batch_size: int, order: str = "global") -> None:
        self.samples, self.batch_size, self.order = samples, batch_size, order

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return self.samples // self.batch_size

    def epoch(self, generators: Sequence[torch.Generator], epoch: int = 0) -> Tensor:
        """Return the samples of an epoch, ``[steps, replicas, batch]``, each replica's out of its own stream."""
        if self.order == "seed":
            seeds = [generator.initial_seed() for generator in generators]
            orders = {seed: self._rows(order_of_epoch(self.samples, seed, epoch)) for seed in set(seeds)}
            return torch.stack([orders[seed] for seed in seeds], dim=1)
        return torch.stack([self._rows(self._drawn(generator)) for generator in generators], dim=1)

    def _drawn(self, generator: torch.Generator) -> Tensor:
        """Draw two numbers, as the iterator of a loader and its sampler do, of which the second seeds the order."""
        # The first is for worker processes, also where there are none.
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        return torch.randperm(self.samples, generator=torch.Generator().manual_seed(seed))

    def _rows(self, order: Tensor) -> Tensor:
        return order[: self.steps * self.batch_size].view(self.steps, self.batch_size)
