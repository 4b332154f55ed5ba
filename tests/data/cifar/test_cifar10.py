"""CIFAR10Data on an arrays file made here, and on the real files where LIT_GELU_DATA names them."""

import os

import numpy as np
import pytest
import scipy.linalg
import torch
import torchvision
from colour_images import write_arrays
from torch import nn

from lit_gelu.data import CIFAR10Data
from lit_gelu.data.cifar.cifar10 import ScaledPixels
from lit_gelu.data.whitening import ZCAWhitening

few = pytest.mark.filterwarnings("ignore:The whitening is fitted to")  # fewer images than pixels


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with ``cifar10.npz``; tests do not change the file."""
    folder = tmp_path_factory.mktemp("colour")
    write_arrays(folder / "cifar10.npz")
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
@few
def test_images_are_scaled_and_whitened_by_the_training_images(root, tmp_path):
    data = CIFAR10Data(root, cache=tmp_path)
    data.prepare_data()
    data.setup()
    mean, matrix = whitening_by_svd(scaled(root, "x_train"))
    for part, name in ((data.train_set, "train"), (data.test_set, "test")):
        expected = (scaled(root, f"x_{name}") - mean) @ matrix
        assert part.images.shape == (len(expected), 3, 32, 32)
        assert part.images.dtype == torch.float32
        # The values are of size 300 (1 / sqrt(1e-5)) times differences of 0.1; float32 has 7 digits.
        np.testing.assert_allclose(part.images.reshape(len(expected), -1), expected, rtol=0, atol=2e-3)
        assert torch.equal(part.labels, torch.from_numpy(np.load(root / "cifar10.npz")[f"y_{name}"]))
    assert len(data.val_set) == 0
    assert data.train_dataloader().batch_size == 100


def test_a_whitening_of_too_few_images_is_warned_of(root, tmp_path):
    data = CIFAR10Data(root, cache=tmp_path)
    with pytest.warns(UserWarning, match="images"):
        data.setup("test")
    CIFAR10Data(root, cache=tmp_path).setup("test")  # kept: no warning again


def test_scaled_only(root, tmp_path):
    data = CIFAR10Data(root, cache=tmp_path, whiten=False)
    data.setup("test")
    expected = torch.from_numpy(scaled(root, "x_test")).float().reshape(-1, 3, 32, 32)
    assert torch.equal(data.test_set.images, expected)
    assert not list(tmp_path.iterdir())
    assert isinstance(data.preprocessing(), ScaledPixels)


@few
def test_preprocessing_makes_the_inputs_out_of_raw_pixels(root, tmp_path):
    data = CIFAR10Data(root, cache=tmp_path)
    preprocessing = data.preprocessing()  # before any setup
    data.setup("test")
    assert [type(step) for step in preprocessing] == [ScaledPixels, ZCAWhitening]
    raw = data.raw_test_inputs()
    assert raw.dtype == torch.uint8
    assert raw.shape == (30, 3, 32, 32)
    torch.testing.assert_close(preprocessing(raw), data.test_set.images)
    with np.load(root / "cifar10.npz") as arrays:
        assert np.array_equal(data.raw_train_inputs().numpy(), arrays["x_train"].transpose(0, 3, 1, 2))
    assert isinstance(preprocessing, nn.Module)
    assert {name for name, _ in preprocessing.named_buffers()} == {"1.mean", "1.matrix"}


@pytest.mark.full
@pytest.mark.realdata
def test_real_files_against_torchvision_and_known_statistics(tmp_path):
    root = os.environ["LIT_GELU_DATA"]
    data = CIFAR10Data(root, whiten=False, cache=tmp_path)
    data.setup()
    for part, train, every in ((data.train_set, True, 10), (data.test_set, False, 1)):
        reference = torchvision.datasets.CIFAR10(root, train=train)
        pixels = (part.images[::every] * 128 + 127.5).permute(0, 2, 3, 1)
        assert torch.equal(pixels, torch.from_numpy(reference.data[::every]).float())
        assert part.labels.tolist() == reference.targets
    # The channels' means and deviations that are known of the 50,000, on the scale of [0, 1].
    deviations, means = torch.std_mean(data.train_set.images, dim=(0, 2, 3))
    torch.testing.assert_close((means * 128 + 127.5) / 255, torch.tensor([0.4914, 0.4822, 0.4465]), rtol=0, atol=6e-5)
    torch.testing.assert_close(deviations * 128 / 255, torch.tensor([0.2470, 0.2435, 0.2616]), rtol=0, atol=6e-5)


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
        rows = data.train_set.images.flatten(1)
        mean = sum(part.double().sum(0) for part in rows.split(5000)) / len(rows)
        products = sum(part.double().T @ part.double() for part in rows.split(5000)) / len(rows)
        means.append(mean)
        covariances.append((products - mean[:, None] * mean).numpy())
    variances, directions = scipy.linalg.eigh(covariances[0])
    found = directions.T @ covariances[1] @ directions
    np.testing.assert_allclose(found, np.diag(variances / (variances + 1e-5)), rtol=0, atol=1e-4)
    assert means[1].abs().max() < 1e-4
    # Images that it was not fitted to come out with about the same deviation.
    assert white.val_set.images.std().item() == pytest.approx(white.train_set.images.std().item(), rel=0.1)
