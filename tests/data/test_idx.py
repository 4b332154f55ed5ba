"""Reading idx files, against numpy and by damaging them."""

import gzip
import hashlib
import os
import struct
import tracemalloc

import numpy as np
import pytest
import torch

from lit_gelu.data import CorruptDataError, DataNotFoundError
from lit_gelu.data.idx import find_idx, read_idx


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


def test_prefers_the_unpacked_file(path, values):
    path.write_bytes(idx_bytes(values))
    path.with_name(path.name + ".gz").write_bytes(b"not gzip")
    assert find_idx(path) == path
    assert read_idx(path, (5, 4, 3)).shape == (5, 4, 3)


def test_packed_file_is_read_without_writing(path, values):
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx_bytes(values)))
    path.parent.chmod(0o500)
    try:
        read_idx(path, (5, 4, 3))
    finally:
        path.parent.chmod(0o700)
    assert [file.name for file in path.parent.iterdir()] == ["images-idx3-ubyte.gz"]


def test_missing_file(path):
    with pytest.raises(DataNotFoundError, match=r"images-idx3-ubyte.*none with \.gz"):
        read_idx(path, (5, 4, 3))


@pytest.mark.parametrize("length", [0, 3, 4, 15, 16, 17, 75])
def test_truncated_file(path, values, length):
    path.write_bytes(idx_bytes(values)[:length])
    with pytest.raises(CorruptDataError, match=r"(does not begin as|truncated).*Delete images-idx3-ubyte"):
        read_idx(path, (5, 4, 3))


def test_file_that_is_too_long(path, values):
    path.write_bytes(idx_bytes(values) + b"\0")
    with pytest.raises(CorruptDataError, match="too long: it holds more bytes, expected 76"):
        read_idx(path, (5, 4, 3))


def test_file_of_another_kind(path):
    path.write_bytes(b"<html>404 not found</html>")
    with pytest.raises(CorruptDataError, match=r"expected 00 00 08 03 00 00 00 05"):
        read_idx(path, (5, 4, 3))


def test_file_of_another_shape(path, values):
    path.write_bytes(idx_bytes(values[:4]))
    with pytest.raises(CorruptDataError, match="does not begin as an idx file"):
        read_idx(path, (5, 4, 3))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "other"])
def test_damaged_packed_file(path, values, damage):
    packed = bytearray(gzip.compress(idx_bytes(values)))
    if damage == "truncated":
        packed = packed[:-12]
    elif damage == "flipped":
        packed[len(packed) // 2] ^= 0xFF
    else:
        packed = bytearray(b"no gzip at all")
    path.with_name(path.name + ".gz").write_bytes(bytes(packed))
    with pytest.raises(CorruptDataError, match=r"cannot be unpacked|too long"):  # a changed length may add bytes
        read_idx(path, (5, 4, 3))


def test_the_digest_is_of_the_unpacked_content(path, values):
    content = idx_bytes(values)
    digest = hashlib.sha256(content).hexdigest()
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    assert torch.equal(read_idx(path, (5, 4, 3), digest), torch.from_numpy(values))
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptDataError, match=rf"not the right content: its SHA-256 .*expected {digest}"):
        read_idx(path, (5, 4, 3), digest)


def test_of_a_file_that_is_too_long_no_more_is_read_than_tells_so(path, values):
    """64 MiB of zeros in 64 KiB, and 64 GiB of holes: read whole they would take as much memory."""
    bomb = idx_bytes(values) + bytes(64 << 20)
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(bomb, compresslevel=1))
    del bomb
    for _ in range(2):
        tracemalloc.start()
        try:
            with pytest.raises(CorruptDataError, match="too long: it holds more bytes"):
                read_idx(path, (5, 4, 3))
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
        path.write_bytes(idx_bytes(values))
        os.truncate(path, 64 << 30)


def test_a_file_that_cannot_be_read(path, values, monkeypatch):
    def fail(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    path.write_bytes(idx_bytes(values))
    monkeypatch.setattr(type(path), "open", fail)
    with pytest.raises(CorruptDataError, match=r"cannot be read \(.*Permission denied\)"):
        read_idx(path, (5, 4, 3))
