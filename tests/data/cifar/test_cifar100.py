"""CIFAR100Data on arrays made here, and on the real ones where LIT_GELU_DATA names them."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from child_processes import run_command
from cifar_arrays import random_arrays, write_arrays, write_batches
from torch.utils.data import RandomSampler
from torchvision.datasets import CIFAR100

from lit_gelu.data import CIFAR100Data
from lit_gelu.data.cifar.base import held_out
from lit_gelu.data.cifar.cifar100 import channel_statistics, mean_image
from lit_gelu.errors import ArgumentError


def as_images(array):
    """Arrays [n, 32, 32, 3] as float64 images [n, 3, 32, 32] in [0, 1]."""
    return torch.from_numpy(array.transpose(0, 3, 1, 2).astype(np.float64) / 255)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a file of 300 training and 120 test images, and what it holds; tests do not change it."""
    root = tmp_path_factory.mktemp("cifar100")
    return root, write_arrays(root / "cifar100.npz", 300, 120, 100)


def test_sets_batches_and_preprocessing(made):
    root, arrays = made
    data = CIFAR100Data(root, batch_size=64, evaluation_batch_size=50)
    data.prepare_data()
    data.setup()
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [600, 0, 120]
    mean = as_images(arrays["x_train"]).mean(dim=0)
    expected = (as_images(arrays["x_test"]) - mean).float()
    torch.testing.assert_close(data.test_set.images, expected, rtol=0, atol=2e-7)
    torch.testing.assert_close(data.train_set.inputs, (as_images(arrays["x_train"]) - mean).float(), rtol=0, atol=2e-7)
    assert data.test_set.labels.tolist() == arrays["y_test"].tolist()
    loader = data.train_dataloader()
    assert isinstance(loader.sampler, RandomSampler)
    batches = list(loader)
    assert [len(labels) for _, labels in batches] == [64] * 9  # 600 samples, the last 24 dropped
    assert batches[0][0].shape == (64, 3, 32, 32)
    assert [len(labels) for _, labels in data.test_dataloader()] == [50, 50, 20]
    assert data.val_dataloader() == []


def test_the_papers_epoch_has_781_steps_and_the_literal_one_390():
    for mirrored_copies, steps in ((True, 781), (False, 390)):
        data = CIFAR100Data(mirrored_copies=mirrored_copies)
        pixels = torch.zeros(1, dtype=torch.uint8).expand(50_000, 3, 32, 32)
        preprocessing = torch.nn.Identity()
        data.train_set = data.training_samples(pixels, torch.zeros(50_000, dtype=torch.int64), preprocessing)
        assert len(data.train_dataloader()) == steps


def test_held_out_images_teach_the_preprocessing_nothing(made):
    root, arrays = made
    data = CIFAR100Data(root, validation=40)
    data.setup("fit")
    train, val = held_out(300, 40)
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(300))
    mean = as_images(arrays["x_train"])[train].mean(dim=0)
    torch.testing.assert_close(data.preprocessing().mean.double(), mean, rtol=0, atol=1e-7)
    expected = (as_images(arrays["x_train"])[val] - mean).float()
    torch.testing.assert_close(data.val_set.images, expected, rtol=0, atol=2e-7)
    assert data.val_set.labels.tolist() == arrays["y_train"][val].tolist()
    assert len(data.train_set) == 2 * 260
    fresh = CIFAR100Data(root, validation=40)
    torch.testing.assert_close(fresh.preprocessing().mean, data.preprocessing().mean, rtol=0, atol=0)


def test_the_recipe_of_zagoruyko(made):
    root, arrays = made
    data = CIFAR100Data(root, mirrored_copies=False, random_mirroring=True, padding="reflect", normalisation="channels")
    data.setup()
    images = as_images(arrays["x_train"])
    mean, std = images.mean(dim=(0, 2, 3), keepdim=True), images.std(dim=(0, 2, 3), keepdim=True, correction=0)
    expected = ((as_images(arrays["x_test"]) - mean) / std).float()
    torch.testing.assert_close(data.test_set.images, expected, rtol=0, atol=1e-6)
    assert len(data.train_set) == 300
    assert (data.train_set.random_mirroring, data.train_set.padding) == (True, "reflect")
    batch, _ = next(iter(data.train_dataloader()))
    assert not batch.eq(0).any()  # no zeros beyond the edges


def test_where_files_are_looked_for(tmp_path, monkeypatch):
    write_arrays(tmp_path / "own.npz", 5, 3, 100)
    monkeypatch.setenv("LIT_GELU_DATA", str(tmp_path))
    assert CIFAR100Data().arrays_file() is None
    write_arrays(tmp_path / "cifar100.npz", 6, 3, 100)
    found = CIFAR100Data()
    assert found.arrays_file() == tmp_path / "cifar100.npz"
    found.raw_test_inputs()
    assert found.hparams["arrays"] == "cifar100.npz"  # so that a log says what was read
    write_batches(tmp_path, CIFAR100, random_arrays(7, 3, 100), monkeypatch)
    assert CIFAR100Data().arrays_file() is None
    for arguments, samples in (({}, 7), ({"arrays": "own.npz"}, 5), ({"arrays": tmp_path / "cifar100.npz"}, 6)):
        data = CIFAR100Data(batch_size=2, **arguments)
        data.prepare_data()
        data.setup("fit")
        assert len(data.train_set) == 2 * samples
    monkeypatch.delenv("LIT_GELU_DATA")
    assert CIFAR100Data().root == Path("data")
    assert CIFAR100Data("here", arrays="own.npz").arrays_file() == Path("here/own.npz")


@pytest.mark.parametrize(
    "arguments",
    [
        {"validation": -1},
        {"validation": 300},
        {"train_samples": 0},
        {"train_samples": 301},
        {"test_samples": 121},
        {"test_samples": True},
        {"batch_size": 601},
        {"evaluation_batch_size": 0},
        {"padding": "zero"},
        {"normalisation": "mean"},
        {"mirrored_copies": "no"},
        {"download": 0},
        {"random_mirroring": True},
    ],
)
def test_refused_arguments(made, arguments):
    def use():
        data = CIFAR100Data(made[0], **arguments)
        data.setup()
        data.setup("fit")

    with pytest.raises(ArgumentError):
        use()


def test_statistics_against_float64():
    pixels = torch.randint(0, 256, (1203, 3, 5, 4), dtype=torch.uint8)
    images = pixels.double() / 255
    torch.testing.assert_close(mean_image(pixels), images.mean(dim=0).float(), rtol=0, atol=0)
    mean, std = channel_statistics(pixels)
    torch.testing.assert_close(mean, images.mean(dim=(0, 2, 3)).float().reshape(3, 1, 1), rtol=1e-7, atol=0)
    reference = images.std(dim=(0, 2, 3), correction=0).float().reshape(3, 1, 1)
    torch.testing.assert_close(std, reference, rtol=1e-6, atol=0)
    with pytest.raises(ArgumentError):
        channel_statistics(torch.full((2, 3, 4, 4), 7, dtype=torch.uint8))


TWO_RANKS = """
import sys
import torch
from pathlib import Path
from lightning.pytorch import LightningModule, Trainer
from lit_gelu.data import (CIFAR100Data)

class Watch(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
    def training_step(self, batch, batch_index):
        rows = " ".join(str(label) for label in batch[1].tolist())
        with Path(sys.argv[2], str(self.global_rank)).open("a") as file:
            file.write(rows + "\\n")
        return (batch[0].mean() * self.weight).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **options)
    trainer.fit(Watch(), datamodule=CIFAR100Data(sys.argv[1], batch_size=10))
"""


@pytest.mark.full
def test_two_ranks_of_lightning_share_an_epoch_of_originals_and_copies(tmp_path):
    """100 images of 100 classes: over both ranks, every label is met twice, once for the original, once mirrored."""
    write_arrays(tmp_path / "cifar100.npz", 100, 3, 100)
    script = tmp_path / "two_ranks.py"
    script.write_text(TWO_RANKS)
    run_command([sys.executable, "-P", str(script), str(tmp_path), str(tmp_path)])
    met = [[int(label) for label in (tmp_path / str(rank)).read_text().split()] for rank in range(2)]
    assert [len(labels) for labels in met] == [100, 100]
    assert sorted(met[0] + met[1]) == sorted([*range(100), *range(100)])


@pytest.mark.realdata
def test_real_arrays_have_their_known_statistics():
    """Mean and standard deviation of each channel, as they are passed around in four digits."""
    data = CIFAR100Data(os.environ["LIT_GELU_DATA"], normalisation="channels")
    data.setup()
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [100_000, 0, 10_000]
    assert torch.bincount(data.train_set.labels).tolist() == [500] * 100
    assert torch.bincount(data.test_set.labels).tolist() == [100] * 100
    module = data.preprocessing()
    known = torch.tensor([[0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]])
    torch.testing.assert_close(torch.stack([module.mean.flatten(), module.std.flatten()]), known, rtol=0, atol=5.1e-5)
    assert len(data.train_dataloader()) == 781
    assert len(data.test_dataloader()) == 20
