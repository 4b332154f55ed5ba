"""torchvision's files of CIFAR and arrays files: made here in their form, and the real ones where LIT_GELU_DATA is."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from cifar_arrays import random_arrays, write_batches
from torchvision.datasets import CIFAR10, CIFAR100

from lit_gelu.data import CIFAR10Data
from lit_gelu.data.cifar_files import missing_cifar_files, read_arrays_file, read_cifar
from lit_gelu.errors import DataError

READERS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


@pytest.mark.parametrize("name", READERS)
def test_images_and_labels_as_they_were_written(tmp_path, monkeypatch, name):
    arrays = random_arrays(12, 5, 10)
    write_batches(tmp_path, READERS[name], arrays, monkeypatch)
    assert missing_cifar_files(tmp_path, name) == []
    read = read_cifar(tmp_path, name)
    for part in ("train", "test"):
        images, labels = getattr(read, f"x_{part}"), getattr(read, f"y_{part}")
        assert (images.dtype, labels.dtype, images.is_contiguous()) == (torch.uint8, torch.int64, True)
        assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), arrays[f"x_{part}"])
        assert np.array_equal(labels.numpy(), arrays[f"y_{part}"])


class Intruder:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return Path.mkdir, (self.folder,)


@pytest.mark.parametrize("spoilt", ["train", "test", "meta"])
def test_of_files_with_a_wrong_checksum_nothing_is_unpickled(tmp_path, monkeypatch, spoilt):
    write_batches(tmp_path, CIFAR100, random_arrays(12, 5, 100), monkeypatch)
    file, trace = tmp_path / "cifar-100-python" / spoilt, tmp_path / "trace"
    file.write_bytes(pickle.dumps(Intruder(trace)))
    with pytest.raises(DataError):
        read_cifar(tmp_path, "cifar100")
    assert not trace.exists()
    pickle.loads(file.read_bytes())
    assert trace.exists()  # so it would have been seen


def test_download_fetches_torchvisions_archive_and_leaves_sets_that_are_there_alone(tmp_path, monkeypatch):
    fetched = []

    def fetch(url, root, filename, md5):
        fetched.append((url, md5))
        write_batches(Path(root), CIFAR10, random_arrays(12, 5, 10), monkeypatch)

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", fetch)
    for _ in range(2):
        CIFAR10Data(tmp_path, download=True).prepare_data()
    assert fetched == [(CIFAR10.url, CIFAR10.tgz_md5)]
    assert len(read_cifar(tmp_path, "cifar10").x_train) == 12


@pytest.mark.realdata
def test_real_cifar10_has_its_known_statistics():
    """Mean and standard deviation of each channel, as they are passed around in four digits."""
    arrays = read_cifar(Path(os.environ["LIT_GELU_DATA"]), "cifar10")
    assert [len(array) for array in arrays] == [50_000, 50_000, 10_000, 10_000]
    assert torch.bincount(arrays.y_train).tolist() == [5_000] * 10
    assert torch.bincount(arrays.y_test).tolist() == [1_000] * 10
    for channel, (mean, std) in enumerate([(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)]):
        pixels = arrays.x_train[:, channel].double() / 255
        assert pixels.mean().item() == pytest.approx(mean, abs=5.1e-5)
        assert pixels.std().item() == pytest.approx(std, abs=5.1e-5)


@pytest.fixture
def written(tmp_path):
    """Write an arrays file with some arrays replaced (None leaves one out) and return its path."""

    def write(**replaced):
        arrays = {**random_arrays(4, 3, 3), **replaced}
        path = tmp_path / "own.npz"
        np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})
        return path

    return write


def test_both_layouts_and_both_shapes_of_labels_are_the_same_data(written):
    arrays = random_arrays(4, 3, 3)
    first = read_arrays_file(written(), 3)
    assert np.array_equal(first.x_test.permute(0, 2, 3, 1).numpy(), arrays["x_test"])
    assert np.array_equal(first.y_train.numpy(), arrays["y_train"])
    again = read_arrays_file(
        written(
            x_train=arrays["x_train"].transpose(0, 3, 1, 2),
            y_train=arrays["y_train"].reshape(-1, 1).astype(np.uint8),
            coarse_train=np.zeros(4),
        ),
        3,
    )
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


OBJECTS = np.empty(4, dtype=object)


@pytest.mark.parametrize(
    "replaced",
    [
        {"x_test": None, "y_test": None},
        {"x_train": np.zeros((4, 32, 32, 3))},
        {"x_train": np.zeros((4, 28, 28, 3), np.uint8)},
        {"x_test": np.zeros((0, 32, 32, 3), np.uint8)},
        {"y_train": np.zeros(3, int)},
        {"y_train": np.zeros(4)},
        {"y_train": np.array([0, 1, 2, 3])},
        {"y_train": np.array([0, 1, 2, -1])},
        {"y_train": OBJECTS},
    ],
)
def test_arrays_that_are_refused(written, replaced):
    with pytest.raises(DataError):
        read_arrays_file(written(**replaced), 3)


def test_an_arrays_file_in_a_folder_is_found_again_by_the_hyper_parameters(tmp_path):
    for folder in (tmp_path, tmp_path / "sub"):
        folder.mkdir(exist_ok=True)
        np.savez(folder / "own.npz", **random_arrays(12, 5, 10))
    data = CIFAR10Data(root=tmp_path, arrays="sub/own.npz", whiten=False)
    data.raw_train_inputs()
    assert CIFAR10Data(root=tmp_path, **data.hparams).arrays == tmp_path / "sub" / "own.npz"
