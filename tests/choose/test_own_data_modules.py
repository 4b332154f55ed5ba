"""`choose` with data modules and modules in the idioms of Lightning's documentation, against its Trainer alone."""

import warnings

import pytest
import torch
from choice_nets import CPU, ConvNet, Stripes, check_by_hand
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset, random_split

from lit_gelu.choose import choose

QUICK = {"seeds": 2, "max_epochs": 2, **CPU}


@pytest.fixture(autouse=True)
def _lightnings_advice():
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*(num_workers|number of training batches|lazily initialized|pin_memory)"
        )
        yield


class Split(LightningDataModule):
    """Splits with random numbers whenever a stage begins."""

    def setup(self, stage):
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(120, 1, 8, 8, generator=generator)
        self.train_set, self.val_set = random_split(TensorDataset(images, torch.arange(120) % 2), [80, 40])

    def train_dataloader(self):
        return DataLoader(self.train_set, 16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, 40)


class InFitAlone(LightningDataModule):
    """Splits when a fit begins, and then alone, and reads the test set for a test, as Lightning's guide shows."""

    def setup(self, stage):
        inner = Stripes()
        inner.setup()
        if stage == "fit":
            samples = TensorDataset(*inner.train_set.tensors)
            self.train_set, self.val_set = random_split(samples, [64, 32], torch.Generator().manual_seed(42))
        if stage == "test":
            self.test_set = TensorDataset(*inner.test_set.tensors)

    def train_dataloader(self):
        return DataLoader(self.train_set, 16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, 16)

    def test_dataloader(self):
        return DataLoader(self.test_set, 16)


def from_datasets():
    """The same samples in a data module whose loaders are set on the instance, as Lightning's from_datasets does."""
    split = InFitAlone()
    split.setup("fit")
    split.setup("test")
    return LightningDataModule.from_datasets(split.train_set, split.val_set, split.test_set, batch_size=16)


@pytest.mark.parametrize(
    ("make", "metric", "test"),
    [
        (Split, "val_loss", False),  # of samples that were held out
        *(
            (make, *metric)
            for make in (InFitAlone, from_datasets)
            for metric in (("val_loss", False), ("test_acc", True))
        ),
    ],
)
def test_runs_are_those_made_by_hand(make, metric, test):
    choice = choose(ConvNet, ["gelu", "relu"], make(), metric=metric, together=False, **QUICK)
    check_by_hand(choice, ConvNet, make(), metric, 2, test=test)
