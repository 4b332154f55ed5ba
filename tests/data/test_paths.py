"""Paths that no file can have: NUL, 300 characters, half of a surrogate pair. Each data set says so."""

import pytest
import torch

from lit_gelu.data import CIFAR10Data, CIFAR100Data, DataNotFoundError, MNISTData, TIMITData, TweetData
from lit_gelu.data.npz import kept_arrays
from lit_gelu.files import UnwritablePathError, require_writable

IMPOSSIBLE = pytest.mark.parametrize("path", ["nul\0nul", "long" * 75, "half\ud800"], ids=["NUL", "long", "surrogate"])
DATA = [MNISTData, CIFAR10Data, CIFAR100Data, TweetData, TIMITData]


@IMPOSSIBLE
@pytest.mark.parametrize("data", DATA)
def test_as_root(data, path):
    with pytest.raises(DataNotFoundError, match=r"[Gg]ive root="):
        data(root=path).prepare_data()


@IMPOSSIBLE
@pytest.mark.parametrize("data", [MNISTData, CIFAR10Data])
def test_as_root_of_a_download(data, path):
    with pytest.raises(DataNotFoundError, match="could not be downloaded"):
        data(root=path, download=True).prepare_data()


@IMPOSSIBLE
def test_as_a_file_of_its_own(tmp_path, path):
    with pytest.raises(DataNotFoundError, match="There is no arrays file"):
        CIFAR10Data(root=tmp_path, arrays=path).prepare_data()
    for name in ("train.txt", "dev.txt", "test.txt"):
        (tmp_path / "tweets").mkdir(exist_ok=True)
        (tmp_path / "tweets" / name).write_text("lol\t!\n")
    for option in ("vectors", "clusters"):
        with pytest.raises(DataNotFoundError, match="There are no word"):
            TweetData(root=tmp_path, **{option: path}).prepare_data()
    with pytest.raises(DataNotFoundError, match="There is no folder"):
        TIMITData(root=tmp_path, corpus=path).prepare_data()


@IMPOSSIBLE
def test_as_a_folder_to_write_to(tmp_path, path):
    computed = {"zeros": torch.zeros(1).numpy()}
    with pytest.raises(UnwritablePathError, match="Cannot write"):
        kept_arrays("zeros", tmp_path / path, lambda arrays: True, lambda: computed)
    with pytest.raises(UnwritablePathError, match="Cannot write"):
        require_writable(path)
