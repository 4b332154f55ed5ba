"""Reading `.npz` files: what numpy wrote comes back; what a file merely claims is neither allocated nor unpickled."""

import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from lit_gelu.data.npz import kept_arrays, load_arrays
from lit_gelu.errors import DataError
from lit_gelu.files import UnwritablePathError


def npy(header: str, content: bytes = b"", version=(1, 0)) -> bytes:
    """An array's file with a header of one's own, as numpy's format description lays it out."""
    text = header.encode("latin-1") + b"\n"
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + content


def packed(tmp_path, kind=zipfile.ZIP_DEFLATED, **members: bytes):
    path = tmp_path / "arrays.npz"
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_as_numpy_wrote_them(tmp_path, save):
    written = {
        "transposed": np.arange(6, dtype=">i2").reshape(2, 3).T,
        "scalar": np.float64(0.5),
        "empty": np.zeros((0, 3), np.complex64),
        "truth": np.array([True, False]),
    }
    save(tmp_path / "arrays.npz", **written)
    read = load_arrays(tmp_path / "arrays.npz")
    assert list(read) == list(written)
    for name, array in written.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (6755399441055744,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000000000000000000000000,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 10000000000000000000000000000000)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -10)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (9,)}",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': (), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 5, 'fortran_order': False, 'shape': (1,)}",
        "{[]: 1}",
        "(" * 5000,
        "{'descr': '|u1'",
    ],
)
def test_a_header_that_says_what_the_file_does_not_hold(tmp_path, header):
    path = packed(tmp_path, numbers=npy(header, bytes(10)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            load_arrays(path)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("compressed", "size"), [(None, 1 << 31), (1 << 22, 1 << 31)])
def test_sizes_that_the_archive_claims(tmp_path, compressed, size):
    """The sizes in the archive's directory (APPNOTE 4.3.12), which is what zipfile believes."""
    path = packed(tmp_path, numbers=npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2147483520,)}"))
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", size)
    if compressed:
        content[directory + 20 : directory + 24] = struct.pack("<I", compressed)
    path.write_bytes(content)
    with pytest.raises(DataError):
        load_arrays(path)


# Results kept in files, when the folder is missing, the user's own, or not to be written to.


def kept(folder):
    """Return what comes back, and how often it was computed."""
    computed = []

    def compute():
        computed.append(1)
        return {"numbers": np.arange(5)}

    arrays = kept_arrays("five", folder, ["numbers"], compute)
    np.testing.assert_array_equal(arrays["numbers"], [0, 1, 2, 3, 4])
    return len(computed)


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch, caplog):
    """By default nothing is kept, and a message says so; a folder that was asked for is an error."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level("INFO"):
        assert [kept(None), kept(None)] == [1, 1]
    assert "five.npz is not kept for the next run: Cannot write" in caplog.text
    with pytest.raises(UnwritablePathError):
        kept(tmp_path / "file" / "kept")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"text", b"\x93NUMPY\x01\x00"])
def test_a_damaged_file_is_replaced(tmp_path, content):
    (tmp_path / "five.npz").write_bytes(content)
    assert [kept(tmp_path), kept(tmp_path)] == [1, 0]
