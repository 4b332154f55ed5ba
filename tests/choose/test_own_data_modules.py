"""`choose` with data modules and modules in the idioms of Lightning's documentation, against its Trainer alone."""

import warnings

import pytest
import torch
from choice_nets import CPU, ConvNet, Stripes, check_by_hand
from lightning.pytorch import LightningDataModule, seed_everything
from lightning.pytorch.utilities.seed import isolate_rng
from small_task import quiet_trainer
from torch.nn import functional
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
    """Splits with random numbers whenever a stage begins; the labels are noise, which a net can only learn by heart."""

    def setup(self, stage):
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(120, 1, 8, 8, generator=generator)
        self.train_set, self.val_set = random_split(TensorDataset(images, torch.arange(120) % 2), [80, 40])

    def train_dataloader(self):
        return DataLoader(self.train_set, 16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, 40)


class Fast(ConvNet):
    """A net that learns by heart."""

    def __init__(self, activation="relu"):
        super().__init__(activation, width=16, rate=3e-2)


def held_out_loss(data, activation, seed):
    """Fit by hand, and compute the loss on what was held out, without the Trainer."""
    held = []
    loader = data.val_dataloader

    def noted():
        held.append(data.val_set)
        return loader()

    data.val_dataloader = noted
    with isolate_rng():
        seed_everything(seed, verbose=False)
        module = Fast(activation)
        quiet_trainer(max_epochs=3, check_val_every_n_epoch=2, **CPU).fit(module, datamodule=data)
    images, labels = (torch.stack([row[place] for row in held[-1]]) for place in (0, 1))
    with torch.no_grad():
        return float(functional.cross_entropy(module.eval()(images), labels))


def test_the_last_validation_is_of_samples_that_were_held_out():
    options = QUICK | {"max_epochs": 3, "check_val_every_n_epoch": 2}
    choice = choose(Fast, ["gelu", "relu"], Split(), metric="val_loss", **options)
    for candidate in choice.candidates:
        for run in candidate.runs:
            wanted = held_out_loss(Split(), run.label, run.seed)
            assert run.value(choice.metric) == pytest.approx(wanted, rel=1e-5)


class InFitAlone(LightningDataModule):
    """Splits when a fit begins, and then alone, and reads the test set for a test, as Lightning's guide shows."""

    def setup(self, stage):
        inner = Stripes()
        inner.setup()
        if stage == "fit":
            whole = TensorDataset(*inner.train_set.tensors)
            self.train_set, self.val_set = random_split(whole, [64, 32], torch.Generator().manual_seed(42))
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


@pytest.mark.parametrize("make", [InFitAlone, from_datasets])
@pytest.mark.parametrize(("metric", "test"), [("val_loss", False), ("test_acc", True)])
def test_runs_are_those_made_by_hand(make, metric, test):
    choice = choose(ConvNet, ["gelu", "relu"], make(), metric=metric, together=False, **QUICK)
    check_by_hand(choice, ConvNet, make(), metric, 2, test=test)
