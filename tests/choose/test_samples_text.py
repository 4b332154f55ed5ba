"""Text of data: other samples are told as other ones, and nothing that runs draw from is used."""

import random

import numpy as np
import pytest
import torch
from choice_nets import OrdinaryStripes, Stripes
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from lit_gelu.choose.samples_text import is_told_whole, samples_told


class Numbers(Dataset):
    """So many numbers by their places, with noise from the global generators."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        return place + torch.rand(1) + random.random() + np.random.random()  # noqa: NPY002


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.rand(3) for _ in range(4)])


class Drawn(LightningDataModule):
    """Data whose loaders have a generator that stays from one run to the next."""

    def __init__(self, training=None, validation=3):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.training, self.validation = training, validation

    def train_dataloader(self):
        streamed = DataLoader(Stream(), 2, generator=self.generator)
        drawn = DataLoader(self.training or Numbers(50), 4, shuffle=True, generator=self.generator)
        return {"a": streamed, "b": drawn}

    def val_dataloader(self):
        return [[torch.full((2,), self.validation)], DataLoader(TensorDataset(torch.zeros(0)), 4)]


class Broken(Drawn):
    def setup(self, stage):
        raise RuntimeError("it broke")


def numpys():
    """Return the state of NumPy's global generator."""
    return np.random.get_state()[1].tolist()  # noqa: NPY002


def text(data):
    untold = []
    found = samples_told(data, "fit", untold)
    assert untold == []
    return found


def test_no_generator_that_runs_draw_from_is_used():
    data = Drawn()
    before = data.generator.get_state(), torch.get_rng_state(), random.getstate(), numpys()
    assert text(data) == text(Drawn())
    assert torch.equal(data.generator.get_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    assert (random.getstate(), numpys()) == before[2:]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (lambda: Drawn(Numbers(51)), "train"),
        (lambda: Drawn(TensorDataset(torch.zeros(50))), "train"),
        (lambda: Drawn(validation=4), "val"),
    ],
)
def test_other_samples_have_another_text(other, name):
    assert text(other())[name] != text(Drawn())[name]


def test_samples_of_from_datasets_are_told():
    made, other = (LightningDataModule.from_datasets(Numbers(count), Numbers(3), batch_size=5) for count in (50, 51))
    assert text(made)["train"] != text(other)["train"]
    assert text(made)["val"] == text(other)["val"] != ""


def test_one_sample_in_memory_that_is_another_is_seen():
    data, other = Stripes(), Stripes()
    other.setup("fit")
    other.train_set.inputs[57, 0, 3, 3] += 1e-6
    assert text(data)["train"] != text(other)["train"]
    assert text(data)["val"] == text(other)["val"]
    assert text(Stripes(batch_size=8))["train"] != text(data)["train"]


def test_what_cannot_be_read_is_said():
    untold = []
    assert "train" not in samples_told(Broken(), "fit", untold)
    assert untold == ["the samples of Broken (RuntimeError: it broke)"]


class Changed(Stripes):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch


class Loaded(Stripes):
    def train_dataloader(self):
        return super().train_dataloader()


@pytest.mark.parametrize(
    ("kind", "whole"), [(Stripes, True), (Changed, False), (Loaded, False), (OrdinaryStripes, False)]
)
def test_data_that_all_samples_decide(kind, whole):
    assert is_told_whole(kind()) == whole
