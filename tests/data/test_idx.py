"""Reading idx files, against numpy and by damaging them."""

import gzip
import hashlib
import os
import struct
import tracemalloc

import numpy as np
import pytest
import torch

from lit_gelu.data.mnist import read_idx
from lit_gelu.errors import DataError


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


def test_packed_file_is_read_without_writing(path, values):
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx_bytes(values)))
    path.parent.chmod(0o500)
    try:
        read_idx(path, (5, 4, 3))
    finally:
        path.parent.chmod(0o700)
    assert [file.name for file in path.parent.iterdir()] == ["images-idx3-ubyte.gz"]


def test_missing_file(path):
    with pytest.raises(DataError):
        read_idx(path, (5, 4, 3))


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
    with pytest.raises(DataError):  # a changed length may add bytes
        read_idx(path, (5, 4, 3))


def test_the_digest_is_of_the_unpacked_content(path, values):
    content = idx_bytes(values)
    digest = hashlib.sha256(content).hexdigest()
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    assert torch.equal(read_idx(path, (5, 4, 3), digest), torch.from_numpy(values))
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError):
        read_idx(path, (5, 4, 3), digest)


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
