"""CIFAR10Data and CIFAR100Data on files made here, and on the real ones where LIT_GELU_DATA names them."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from cifar_arrays import random_arrays, write_arrays, write_batches
from scipy import stats
from torch import nn
from torchvision.datasets import CIFAR100

from lit_gelu.data import CIFAR10Data, CIFAR100Data
from lit_gelu.data.cifar import AugmentedImages, CentredPixels, ScaledPixels, held_out
from lit_gelu.data.whitening import ZCAWhitening
from lit_gelu.errors import ArgumentError


def as_images(array):
    """Arrays [n, 32, 32, 3] as float64 images [n, 3, 32, 32] in [0, 1]."""
    return torch.from_numpy(array.transpose(0, 3, 1, 2).astype(np.float64) / 255)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A folder with a file of 300 training and 120 test images, and what it holds; tests do not change it."""
    root = tmp_path_factory.mktemp("cifar100")
    return root, write_arrays(root / "cifar100.npz", 300, 120, 100)


def test_sets_batches_and_preprocessing(archive):
    root, arrays = archive
    data = CIFAR100Data(root, batch_size=64)
    data.prepare_data()
    data.setup()
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [600, 0, 120]
    mean = as_images(arrays["x_train"]).mean(dim=0)
    expected = (as_images(arrays["x_test"]) - mean).float()
    torch.testing.assert_close(data.test_set.inputs, expected, rtol=0, atol=2e-7)
    torch.testing.assert_close(data.train_set.inputs, (as_images(arrays["x_train"]) - mean).float(), rtol=0, atol=2e-7)
    assert data.test_set.labels.tolist() == arrays["y_test"].tolist()
    loader = data.train_dataloader()
    batches = list(loader)
    assert [len(labels) for _, labels in batches] == [64] * 9  # 600 samples, the last 24 dropped
    assert batches[0][0].shape == (64, 3, 32, 32)
    assert [len(labels) for _, labels in data.test_dataloader()] == [120]
    assert data.val_dataloader() == []


def test_the_papers_epoch_has_781_steps():
    data, pixels = CIFAR100Data(), torch.zeros(1, dtype=torch.uint8).expand(50_000, 3, 32, 32)
    data.train_set = data.training_samples(pixels, torch.zeros(50_000, dtype=torch.int64), torch.nn.Identity())
    assert len(data.train_dataloader()) == 781


def test_held_out_images_teach_the_preprocessing_nothing(archive):
    root, arrays = archive
    data = CIFAR100Data(root, validation=40)
    data.setup("fit")
    train, val = held_out(300, 40)
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(300))
    mean = as_images(arrays["x_train"])[train].mean(dim=0)
    torch.testing.assert_close(data.preprocessing().mean.double(), mean, rtol=0, atol=1e-7)
    expected = (as_images(arrays["x_train"])[val] - mean).float()
    torch.testing.assert_close(data.val_set.inputs, expected, rtol=0, atol=2e-7)
    assert data.val_set.labels.tolist() == arrays["y_train"][val].tolist()
    assert len(data.train_set) == 2 * 260
    fresh = CIFAR100Data(root, validation=40)
    torch.testing.assert_close(fresh.preprocessing().mean, data.preprocessing().mean, rtol=0, atol=0)


def test_where_files_are_looked_for(tmp_path, monkeypatch):
    write_arrays(tmp_path / "own.npz", 5, 3, 100)
    monkeypatch.setenv("LIT_GELU_DATA", str(tmp_path))
    assert CIFAR100Data().arrays_file() is None
    write_arrays(tmp_path / "cifar100.npz", 6, 3, 100)
    module = CIFAR100Data()
    assert module.arrays_file() == tmp_path / "cifar100.npz"
    module.raw_test_inputs()
    assert module.hparams["arrays"] == "cifar100.npz"  # so that a log says what was read
    write_batches(tmp_path, CIFAR100, random_arrays(7, 3, 100), monkeypatch)
    assert CIFAR100Data().arrays_file() is None
    for arguments, samples in (({}, 7), ({"arrays": "own.npz"}, 5), ({"arrays": tmp_path / "cifar100.npz"}, 6)):
        data = CIFAR100Data(batch_size=2, **arguments)
        data.prepare_data()
        data.setup("fit")
        assert len(data.train_set) == 2 * samples
    monkeypatch.delenv("LIT_GELU_DATA")
    assert CIFAR100Data().root == Path("data")
    monkeypatch.setenv("LIT_GELU_DATA", "")  # as unset
    assert CIFAR100Data().root == Path("data")
    assert CIFAR100Data("here", arrays="own.npz").arrays_file() == Path("here/own.npz")


@pytest.mark.parametrize(
    "arguments",
    [
        {"validation": -1},
        {"validation": 300},
        {"train_samples": 0},
        {"test_samples": True},
        {"batch_size": 601},
        {"download": 0},
    ],
)
def test_refused_arguments(archive, arguments):
    def use():
        data = CIFAR100Data(archive[0], **arguments)
        data.setup()
        data.setup("fit")

    with pytest.raises(ArgumentError):
        use()


@pytest.mark.realdata
def test_real_arrays_have_their_known_statistics():
    """Mean and standard deviation of each channel, as they are passed around in four digits."""
    data = CIFAR100Data(os.environ["LIT_GELU_DATA"])
    data.setup()
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [100_000, 0, 10_000]
    assert torch.bincount(data.train_set.labels).tolist() == [500] * 100
    assert torch.bincount(data.test_set.labels).tolist() == [100] * 100
    expected = torch.tensor([0.5071, 0.4865, 0.4409])
    torch.testing.assert_close(data.preprocessing().mean.mean(dim=(1, 2)), expected, rtol=0, atol=5.1e-5)
    assert len(data.train_dataloader()) == 781
    assert len(data.test_dataloader()) == 20


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with ``cifar10.npz``; tests do not change the file."""
    folder = tmp_path_factory.mktemp("colour")
    write_arrays(folder / "cifar10.npz", 60, 30, 10)
    return folder


def scaled(path, name):
    pixels = np.load(path / "cifar10.npz")[name].transpose(0, 3, 1, 2)
    return ((pixels - 127.5) / 128).reshape(len(pixels), -1)


def whitening_by_svd(rows):
    """U diag(1 / sqrt(S + 1e-5)) U^T of the covariance, through the singular values of the rows themselves."""
    mean = rows.mean(axis=0)
    _, sizes, directions = scipy.linalg.svd(rows - mean, full_matrices=True)
    variances = np.zeros(rows.shape[1])
    variances[: len(sizes)] = sizes**2 / len(rows)
    return mean, directions.T @ np.diag(1 / np.sqrt(variances + 1e-5)) @ directions


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The whitening is fitted to")  # fewer images than pixels
def test_images_are_scaled_and_whitened_by_the_training_images(root, tmp_path):
    data = CIFAR10Data(root, cache=tmp_path)
    data.prepare_data()
    data.setup()
    mean, matrix = whitening_by_svd(scaled(root, "x_train"))
    for part, name in ((data.train_set, "train"), (data.test_set, "test")):
        expected = (scaled(root, f"x_{name}") - mean) @ matrix
        assert part.inputs.shape == (len(expected), 3, 32, 32)
        assert part.inputs.dtype == torch.float32
        # The values are of size 300 (1 / sqrt(1e-5)) times differences of 0.1; float32 has 7 digits.
        np.testing.assert_allclose(part.inputs.reshape(len(expected), -1), expected, rtol=0, atol=2e-3)
        assert torch.equal(part.labels, torch.from_numpy(np.load(root / "cifar10.npz")[f"y_{name}"]))
    assert len(data.val_set) == 0
    assert data.train_dataloader().batch_size == 100


def test_preprocessing_makes_the_inputs_out_of_raw_pixels(root, tmp_path):
    data = CIFAR10Data(root, cache=tmp_path)
    with pytest.warns(UserWarning, match="images"):  # which are too few to fit a whitening to
        preprocessing = data.preprocessing()  # before any setup
    data.setup("test")
    CIFAR10Data(root, cache=tmp_path).setup("test")  # kept: no warning again
    assert [type(step) for step in preprocessing] == [ScaledPixels, ZCAWhitening]
    raw = data.raw_test_inputs()
    assert raw.dtype == torch.uint8
    assert raw.shape == (30, 3, 32, 32)
    torch.testing.assert_close(preprocessing(raw), data.test_set.inputs)
    with np.load(root / "cifar10.npz") as arrays:
        assert np.array_equal(data.raw_train_inputs().numpy(), arrays["x_train"].transpose(0, 3, 1, 2))
    assert isinstance(preprocessing, nn.Module)
    assert {name for name, _ in preprocessing.named_buffers()} == {"1.mean", "1.matrix"}


@pytest.mark.full
@pytest.mark.realdata
def test_whitened_training_images_have_the_stated_covariance(tmp_path):
    """S / (S + 1e-5) along scipy's directions of the covariance of the scaled images, float32 inputs and all."""
    root, validation = os.environ["LIT_GELU_DATA"], 5000
    plain = CIFAR10Data(root, validation=validation, whiten=False)
    white = CIFAR10Data(root, validation=validation, cache=tmp_path)
    for data in (plain, white):
        data.setup("fit")
    assert (len(white.train_set), len(white.val_set)) == (50_000 - validation, validation)
    means, covariances = [], []
    for data in (plain, white):
        rows = data.train_set.inputs.flatten(1)
        mean = sum(part.double().sum(0) for part in rows.split(5000)) / len(rows)
        products = sum(part.double().T @ part.double() for part in rows.split(5000)) / len(rows)
        means.append(mean)
        covariances.append((products - mean[:, None] * mean).numpy())
    variances, directions = scipy.linalg.eigh(covariances[0])
    covariance = directions.T @ covariances[1] @ directions
    np.testing.assert_allclose(covariance, np.diag(variances / (variances + 1e-5)), rtol=0, atol=1e-4)
    assert means[1].abs().max() < 1e-4
    # Images that it was not fitted to come out with about the same deviation.
    assert white.val_set.inputs.std().item() == pytest.approx(white.train_set.inputs.std().item(), rel=0.1)


def slow_crop(image, row, column):
    """Pixel by pixel: what lies at row + i - 4, column + j - 4 of the image."""
    channels, height, width = image.shape
    result = torch.zeros_like(image)
    for channel in range(channels):
        for i in range(height):
            for j in range(width):
                y, x = row + i - 4, column + j - 4
                if 0 <= y < height and 0 <= x < width:
                    result[channel, i, j] = image[channel, y, x]
    return result


def places(samples):
    """Images whose only pixel above 0 is a 1 at row 16, column 12 of 32x32; after a crop it says where it was cut."""
    pixels = torch.zeros(samples, 1, 32, 32, dtype=torch.uint8)
    pixels[:, :, 16, 12] = 1
    return pixels


def cuts(images):
    """The rows and columns of the ones."""
    assert images.flatten(1).sum(dim=1).eq(1).all()
    index = images.flatten(1).argmax(dim=1)
    return index // 32, index % 32


def test_offsets_are_uniform_and_independent_and_the_second_half_is_mirrored():
    data = AugmentedImages(places(8100), torch.zeros(8100, dtype=torch.int64), nn.Identity())
    assert len(data) == 16_200
    for first, column_of in ((0, 12), (8100, 31 - 12)):
        images, _ = data.__getitems__(list(range(first, first + 8100)))
        rows, columns = cuts(images)
        row_offsets, column_offsets = 16 + 4 - rows, column_of + 4 - columns
        counts = torch.bincount(row_offsets * 9 + column_offsets, minlength=81)
        assert len(counts) == 81
        assert stats.chisquare(counts.numpy()).pvalue > 1e-4  # 81 pairs, each with the same share
        neighbours = torch.stack([row_offsets[:-1] * 9 + row_offsets[1:], column_offsets[:-1] * 9 + column_offsets[1:]])
        for pairs in neighbours:  # nor do neighbouring samples share them
            assert stats.chisquare(torch.bincount(pairs, minlength=81).numpy()).pvalue > 1e-4


def test_a_batch_against_a_loop_over_samples():
    """Preprocess, then mirror, then pad with zeros, then crop; the mean image is not symmetric, so order matters."""
    pixels = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    mean = torch.linspace(0, 1, 32).expand(3, 32, 32)
    data = AugmentedImages(pixels, torch.arange(6), CentredPixels(mean))
    indices = [7, 0, 11, 5, 1]
    torch.manual_seed(3)
    images, labels = data.__getitems__(indices)
    torch.manual_seed(3)
    offsets = torch.randint(9, (2, 5))
    for row, index in enumerate(indices):
        image = pixels[index % 6] / 255 - mean
        image = image.flip(2) if index >= 6 else image
        assert torch.equal(images[row], slow_crop(image, *offsets[:, row].tolist()))
    assert labels.tolist() == [1, 0, 5, 5, 1]
    assert images.dtype == torch.float32
