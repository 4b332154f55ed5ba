"""A data set of random images and a quiet Trainer, for tests of tasks."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer

from lit_gelu.data import InMemoryDataModule, InMemorySamples

COLOUR = (3, 32, 32)


class SmallData(InMemoryDataModule):
    """Random samples, of MNIST's shape if no other is given: 24 training, 19 validation, 21 test, in batches of 8."""

    def __init__(self, shape: Sequence[int] = (1, 28, 28), classes: int = 10) -> None:
        super().__init__(batch_size=8)
        self.shape, self.classes = shape, classes

    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        return self._samples(0, 24), self._samples(1, 19)

    def load_test(self) -> InMemorySamples:
        return self._samples(2, 21)

    def _samples(self, seed: int, count: int) -> InMemorySamples:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(self.classes, (count,), generator=generator)
        return InMemorySamples(torch.rand(count, *self.shape, generator=generator), labels)


def quiet_trainer(**options: Any) -> Trainer:
    """Return a Trainer on one CPU that prints and writes nothing unless told to."""
    return Trainer(**{
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
        **options,
    })
