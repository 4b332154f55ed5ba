"""MNISTData and idx files made here, and the real ones where LIT_GELU_DATA names them."""

import gzip
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import RandomSampler

from lit_gelu.data import MNISTData
from lit_gelu.data.mnist import read_idx
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
def made(tmp_path_factory):
    """A folder with the four files unpacked; tests do not change it."""
    root = tmp_path_factory.mktemp("mnist")
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_bytes(content(name))
    return root


@pytest.fixture
def copied(made, tmp_path):
    """A folder of links to the same files, to be spoilt."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).symlink_to(made / "MNIST" / "raw" / name)
    return tmp_path


def replace(root: Path, name: str, with_bytes: bytes) -> None:
    file = root / "MNIST" / "raw" / name
    file.unlink()
    file.write_bytes(with_bytes)


def test_split_scaling_shapes_and_dtypes(made):
    data = MNISTData(made, checksum=False)
    data.prepare_data()
    data.setup()
    parts = (data.train_set, data.val_set, data.test_set)
    assert [len(part) for part in parts] == [55_000, 5_000, 10_000]
    for part, first in zip(parts, (5_000, 0, 0), strict=True):
        numbers = torch.arange(first, first + len(part))
        assert part.images.shape == (len(part), 1, 28, 28)
        assert part.images.dtype == torch.float32
        assert torch.equal(part.labels, numbers % 10)
        pixels = (numbers % 256).float() / 255
        assert torch.equal(part.images, pixels.reshape(-1, 1, 1, 1).expand(-1, 1, 28, 28))
    assert len(data.train_dataloader()) == 429


def test_all_images_train_where_none_are_held_out(made):
    data = MNISTData(made, batch_size=64, validation=0, checksum=False)
    assert dict(data.hparams) == {"batch_size": 64, "validation": 0}
    data.setup("fit")
    assert torch.equal(data.train_set.labels, torch.arange(60_000) % 10)
    loader = data.train_dataloader()
    assert len(loader) == 937
    assert isinstance(loader.sampler, RandomSampler)
    assert data.val_dataloader() == []
    with pytest.raises(ArgumentError):
        data.setup("validate")


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_the_right_form_with_another_content(copied, packed):
    """Such as Fashion-MNIST's under MNIST's names."""
    if packed:
        replace(copied, FILES[2], b"")
        (copied / "MNIST" / "raw" / FILES[2]).unlink()
        (copied / "MNIST" / "raw" / f"{FILES[2]}.gz").write_bytes(gzip.compress(content(FILES[2]), compresslevel=1))
    with pytest.raises(DataError):
        MNISTData(copied).setup("test")
    MNISTData(copied, checksum=False).setup("test")


def test_raw_pixels_and_their_preprocessing_give_the_test_images(made):
    data = MNISTData(made, checksum=False)
    data.setup("test")
    raw = data.raw_test_inputs()
    assert raw.dtype == torch.uint8
    assert torch.equal(data.preprocessing()(raw), data.test_set.images)
    exact = raw.numpy().astype(np.float64) / 255
    assert np.array_equal(data.preprocessing()(raw).numpy(), exact.astype(np.float32))


def test_root_comes_from_the_argument_then_the_environment_then_data(monkeypatch):
    monkeypatch.setenv("LIT_GELU_DATA", "elsewhere")
    assert MNISTData("here").folder == Path("here/MNIST/raw")
    assert MNISTData().folder == Path("elsewhere/MNIST/raw")
    monkeypatch.delenv("LIT_GELU_DATA")
    assert MNISTData().folder == Path("data/MNIST/raw")


@pytest.mark.realdata
def test_real_files_against_torchvision_and_known_statistics():
    root = os.environ["LIT_GELU_DATA"]
    data = MNISTData(root)
    data.prepare_data()
    data.setup()
    reference = torchvision.datasets.MNIST(root, train=True)
    pixels = torch.cat([data.val_set.images, data.train_set.images])
    assert torch.equal((pixels * 255).round().to(torch.uint8).squeeze(1), reference.data)
    assert torch.equal(torch.cat([data.val_set.labels, data.train_set.labels]), reference.targets)
    test = torchvision.datasets.MNIST(root, train=False)
    assert torch.equal((data.test_set.images * 255).round().to(torch.uint8).squeeze(1), test.data)
    assert torch.equal(data.test_set.labels, test.targets)
    # Known of the 60,000: mean .13066, standard deviation .30811, mean square .11200.
    assert pixels.double().mean().item() == pytest.approx(0.13066, abs=5e-6)
    assert pixels.double().std().item() == pytest.approx(0.30811, abs=5e-6)
    assert pixels.double().square().mean().item() == pytest.approx(0.11200, abs=5e-6)


def idx_bytes(values: np.ndarray) -> bytes:
    """The format as struct writes it."""
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def values():
    return np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "images-idx3-ubyte"


@pytest.mark.parametrize("packed", [False, True])
def test_reads_packed_and_unpacked_files(path, values, packed):
    content = idx_bytes(values)
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)
    read = read_idx(path, (5, 4, 3))
    assert read.dtype == torch.uint8
    np.testing.assert_array_equal(read.numpy(), values)


DAMAGED = {
    **{f"cut behind {length} bytes": lambda content, length=length: content[:length] for length in (0, 3, 15, 16, 75)},
    "too long": lambda content: content + b"\0",
    "another kind": lambda content: b"<html>404 not found</html>",
    "another shape": lambda content: idx_bytes(np.zeros((4, 5, 3), np.uint8)),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_file(path, values, damage):
    path.write_bytes(DAMAGED[damage](idx_bytes(values)))
    with pytest.raises(DataError):
        read_idx(path, (5, 4, 3))


def test_of_a_file_that_is_too_long_no_more_is_read_than_tells_so(path, values):
    """64 MiB of zeros in 64 KiB, and 64 GiB of holes: read whole they would take as much memory."""
    bomb = idx_bytes(values) + bytes(64 << 20)
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(bomb, compresslevel=1))
    del bomb
    for _ in range(2):
        tracemalloc.start()
        try:
            with pytest.raises(DataError):
                read_idx(path, (5, 4, 3))
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
        path.write_bytes(idx_bytes(values))
        os.truncate(path, 64 << 30)
