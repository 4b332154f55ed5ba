"""An order of samples that is a function of seed and epoch alone: found again without going through the data."""

import hashlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from typing_extensions import override

from lit_gelu.data.errors import CorruptDataError, DataArgumentError
from lit_gelu.data.resumable_loader import ResumableDataLoader
from lit_gelu.errors import shown

ORDERS = ("global", "seed")  # what the order of training samples comes from
T_co = TypeVar("T_co", covariant=True)


def order_of_epoch(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the numbers of all samples in the order of an epoch, ``[samples]``."""
    digest = hashlib.blake2b(f"order {seed % 2**64} {epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randperm(samples, generator=generator)


class SeededSampler(Sampler[int]):
    """The numbers of so many samples in the order of `order_of_epoch`, each pass in that of the next epoch."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.seed: int | None = None
        self.epoch = -1
        self.first = 0  # samples that the next pass leaves out at its start

    def __len__(self) -> int:
        """Return how many there are."""
        return self.samples

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of an epoch; a Trainer calls it."""
        self.epoch = epoch - 1

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the next epoch."""
        first, self.first, self.epoch = self.first, 0, self.epoch + 1
        self.seed = torch.initial_seed() if self.seed is None else self.seed
        order: list[int] = order_of_epoch(self.samples, self.seed, self.epoch).tolist()
        yield from order[first:]


class SeededDataLoader(ResumableDataLoader[T_co]):
    """A `ResumableDataLoader` of a `SeededSampler`, which draws nothing from the global generators.

    The seed is that of torch's global generator (``seed_everything``) when the first pass begins. A pass that is gone
    on with begins at its batch: the ones before are not taken again.
    """

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return where the present pass is, as plain data."""
        if self._is_in_order():
            return super().state_dict()
        sampler = self._seeded()
        return {"taken": self._taken, "seed": sampler.seed, "epoch": sampler.epoch}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass go on where a saved one was; one that was at its end is followed by a new one."""
        if self._is_in_order():
            super().load_state_dict(state_dict)
            return
        given = state_dict if isinstance(state_dict, dict) else {}
        taken, seed, epoch = given.get("taken"), given.get("seed"), given.get("epoch")
        if not isinstance(taken, int) or (taken and not (isinstance(seed, int) and isinstance(epoch, int))):
            raise CorruptDataError(
                f"The state of the training data in the checkpoint is {shown(state_dict)}: damaged, or that of another "
                "order. Resume with the order= of the run that saved it, or from another checkpoint."
            )
        self._resume = state_dict if self._is_unfinished(taken) else None
        if seed is not None:
            self._seeded().seed = seed

    @override
    def _batches(self) -> Iterator[T_co]:
        if self._is_in_order():
            yield from super()._batches()
            return
        resume = self._resume
        self.start_anew()
        sampler, self._taken = self._seeded(), 0
        if resume is not None:
            self._taken = resume["taken"]
            sampler.first = self._taken * (self.batch_size or 1)
            sampler.set_epoch(resume["epoch"])
        for batch in DataLoader.__iter__(self):
            self._taken += 1
            yield batch

    def _is_in_order(self) -> bool:
        """Return whether a Trainer has turned shuffling off, as ``overfit_batches`` does."""
        return isinstance(self.sampler, SequentialSampler)

    def _seeded(self) -> SeededSampler:
        sampler: Any = self.sampler
        if not isinstance(sampler, SeededSampler):
            raise DataArgumentError(
                f'order="seed" is of one process alone; the sampler is {type(sampler).__name__}. Give order="global".'
            )
        return sampler
