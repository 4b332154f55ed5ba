"""MNISTData and idx files made here, and the real ones where LIT_GELU_DATA names them."""

import os
import struct

import numpy as np
import pytest
import torch
import torchvision

from lit_gelu.data import MNISTData
from lit_gelu.errors import ArgumentError, DataError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def content(name: str) -> bytes:
    """A file of the right form: image i is filled with i % 256, its label is i % 10."""
    samples = 60_000 if name.startswith("train") else 10_000
    numbers = np.arange(samples)
    if "labels" in name:
        return struct.pack(">HBBI", 0, 8, 1, samples) + (numbers % 10).astype(np.uint8).tobytes()
    header = struct.pack(">HBB3I", 0, 8, 3, samples, 28, 28)
    return header + np.repeat((numbers % 256).astype(np.uint8), 784).tobytes()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with the four files unpacked; tests do not change it."""
    root = tmp_path_factory.mktemp("mnist")
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_bytes(content(name))
    return root


def test_split_scaling_shapes_and_dtypes(source):
    data = MNISTData(source, checksum=False)
    data.prepare_data()
    data.setup()
    parts = (data.train_set, data.val_set, data.test_set)
    assert [len(part) for part in parts] == [55_000, 5_000, 10_000]
    for part, first in zip(parts, (5_000, 0, 0), strict=True):
        numbers = torch.arange(first, first + len(part))
        assert part.inputs.shape == (len(part), 1, 28, 28)
        assert part.inputs.dtype == torch.float32
        assert torch.equal(part.labels, numbers % 10)
        pixels = (numbers % 256).float() / 255
        assert torch.equal(part.inputs, pixels.reshape(-1, 1, 1, 1).expand(-1, 1, 28, 28))
    assert len(data.train_dataloader()) == 429


def test_all_images_train_where_none_are_held_out(source):
    data = MNISTData(source, batch_size=64, validation=0, checksum=False)
    assert dict(data.hparams) == {"batch_size": 64, "validation": 0}
    data.setup("fit")
    assert torch.equal(data.train_set.labels, torch.arange(60_000) % 10)
    loader = data.train_dataloader()
    assert len(loader) == 937
    assert data.val_dataloader() == []
    with pytest.raises(ArgumentError):
        data.setup("validate")


def test_files_of_the_right_form_with_another_content(source):
    """Such as Fashion-MNIST's under MNIST's names."""
    with pytest.raises(DataError):
        MNISTData(source).setup("test")
    MNISTData(source, checksum=False).setup("test")


DAMAGED = {
    "missing": None,
    "empty": b"",
    "cut": content("t10k-labels-idx1-ubyte")[:-1],
    "too long": content("t10k-labels-idx1-ubyte") + b"\0",
    "another kind": b"<html>404 not found</html>",
    "another shape": content("t10k-images-idx3-ubyte"),
    "a label above 9": content("t10k-labels-idx1-ubyte")[:-1] + bytes([10]),
}


@pytest.mark.parametrize("labels", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files(source, tmp_path, labels):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name in FILES[:3]:
        (folder / name).symlink_to(source / "MNIST" / "raw" / name)
    if labels is not None:
        (folder / FILES[3]).write_bytes(labels)
    with pytest.raises(DataError):
        MNISTData(tmp_path, checksum=False).setup("test")


def test_raw_pixels_and_their_preprocessing_give_the_test_images(source):
    data = MNISTData(source, checksum=False)
    data.setup("test")
    raw = data.raw_test_inputs()
    assert raw.dtype == torch.uint8
    assert torch.equal(data.preprocessing()(raw), data.test_set.inputs)
    exact = raw.numpy().astype(np.float64) / 255
    assert np.array_equal(data.preprocessing()(raw).numpy(), exact.astype(np.float32))


@pytest.mark.realdata
def test_real_files_against_torchvision_and_known_statistics():
    root = os.environ["LIT_GELU_DATA"]
    data = MNISTData(root)
    data.prepare_data()
    data.setup()
    reference = torchvision.datasets.MNIST(root, train=True)
    pixels = torch.cat([data.val_set.inputs, data.train_set.inputs])
    assert torch.equal((pixels * 255).round().to(torch.uint8).squeeze(1), reference.data)
    assert torch.equal(torch.cat([data.val_set.labels, data.train_set.labels]), reference.targets)
    test = torchvision.datasets.MNIST(root, train=False)
    assert torch.equal((data.test_set.inputs * 255).round().to(torch.uint8).squeeze(1), test.data)
    assert torch.equal(data.test_set.labels, test.targets)
    # Known of the 60,000: mean .13066, standard deviation .30811, mean square .11200.
    assert pixels.double().mean().item() == pytest.approx(0.13066, abs=5e-6)
    assert pixels.double().std().item() == pytest.approx(0.30811, abs=5e-6)
    assert pixels.double().square().mean().item() == pytest.approx(0.11200, abs=5e-6)
