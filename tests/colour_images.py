"""An arrays file of random 32x32 colour images, and a data module of them, for tests of the CIFAR tasks."""

from pathlib import Path

import numpy as np
import torch

from lit_gelu.data import InMemoryDataModule, InMemorySamples

TRAIN, TEST = 60, 30


def write_arrays(path: Path, classes: int = 10, train: int = TRAIN, test: int = TEST) -> Path:
    """Write random pixels, whose mean depends on the place and on the class, and return the path."""
    rng = np.random.default_rng(0)
    places = rng.uniform(60, 190, (32, 32, 3))

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.permutation(np.arange(count) % classes)
        pixels = places + labels[:, None, None, None] * 3 + rng.normal(0, 20, (count, 32, 32, 3))
        return pixels.clip(0, 255).astype(np.uint8), labels

    (x_train, y_train), (x_test, y_test) = part(train), part(test)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


class ColourData(InMemoryDataModule):
    """Normal numbers of CIFAR's shape: 24 training, 19 validation, 21 test samples, in batches of 8."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(batch_size=8)
        self.classes = classes

    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        return self._images(0, 24), self._images(1, 19)

    def load_test(self) -> InMemorySamples:
        return self._images(2, 21)

    def _images(self, seed: int, count: int) -> InMemorySamples:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(self.classes, (count,), generator=generator)
        return InMemorySamples(torch.randn(count, 3, 32, 32, generator=generator), labels)
