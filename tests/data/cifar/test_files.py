"""torchvision's files of CIFAR: made here in their form, and the real ones where LIT_GELU_DATA names them."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from cifar_arrays import random_arrays, write_batches
from torchvision.datasets import CIFAR10, CIFAR100

from lit_gelu.data.cifar.files import download_cifar, missing_cifar_files, read_cifar
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


def test_truncated_file(tmp_path, monkeypatch):
    write_batches(tmp_path, CIFAR10, random_arrays(12, 5, 10), monkeypatch)
    file = tmp_path / "cifar-10-batches-py" / "test_batch"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError):
        read_cifar(tmp_path, "cifar10")


@pytest.mark.parametrize("name", READERS)
def test_download_fetches_torchvisions_archive_and_leaves_whole_sets_alone(tmp_path, monkeypatch, name):
    fetched = []

    def fetch(url, root, filename, md5):
        fetched.append((url, md5))
        write_batches(Path(root), READERS[name], random_arrays(12, 5, 10), monkeypatch)

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", fetch)
    for _ in range(2):
        download_cifar(tmp_path, name)
    assert fetched == [(READERS[name].url, READERS[name].tgz_md5)]
    assert len(read_cifar(tmp_path, name).x_train) == 12


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
