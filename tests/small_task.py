"""A data set of random images and a quiet Trainer, for tests of tasks."""

from typing import Any

import torch
from lightning.pytorch import Trainer

from lit_gelu.data import InMemoryDataModule, InMemorySamples


class SmallData(InMemoryDataModule):
    """Random images of MNIST's shape: 24 training, 19 validation, 21 test samples, in batches of 8."""

    def __init__(self) -> None:
        super().__init__(batch_size=8)

    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        return random_images(0, 24), random_images(1, 19)

    def load_test(self) -> InMemorySamples:
        return random_images(2, 21)


def random_images(seed: int, count: int) -> InMemorySamples:
    """Return ``count`` random images and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return InMemorySamples(torch.rand(count, 1, 28, 28, generator=generator), labels)


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
