"""Reading `.npz` files: what numpy wrote comes back; what a file merely claims is neither allocated nor unpickled."""

import io
import pickle
import struct
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_gelu.data.errors import CorruptDataError
from lit_gelu.data.npz import default_folder, kept_arrays, load_arrays
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


class Touches:
    """An object whose unpickling makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


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


def test_only_what_is_asked_for_is_read(tmp_path):
    np.savez(tmp_path / "arrays.npz", numbers=np.arange(3), objects=np.array([{}]), words=np.array(["lol"]))
    assert list(load_arrays(tmp_path / "arrays.npz", {"numbers", "others"})) == ["numbers"]
    with pytest.raises(CorruptDataError, match="holds object, no numbers"):
        load_arrays(tmp_path / "arrays.npz")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (6755399441055744,)}", r"says shape .* holds 10 bytes"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000000000000000000000000,)}", "holds 10 bytes"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (0, 10000000000000000000000000000000)}", "holds 10 bytes"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -10)}", "holds 10 bytes"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (9,)}", "holds 10 bytes"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}", "no numbers"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "no numbers"),
        ("{'descr': (), 'fortran_order': False, 'shape': (1,)}", ""),
        ("{'descr': 5, 'fortran_order': False, 'shape': (1,)}", ""),
        ("{[]: 1}", ""),
        ("(" * 5000, ""),
        ("{'descr': '|u1'", ""),
    ],
)
def test_a_header_that_says_what_the_file_does_not_hold(tmp_path, header, reason):
    path = packed(tmp_path, numbers=npy(header, bytes(10)))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match=f"{reason}.*truncated, damaged, of another kind"):
            load_arrays(path)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [(2, 0), (3, 0)])
def test_headers_of_other_versions(tmp_path, version):
    path = packed(tmp_path, numbers=npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", b"\1\2", version))
    if version == (2, 0):
        np.testing.assert_array_equal(load_arrays(path)["numbers"], [1, 2])
    else:
        with pytest.raises(CorruptDataError, match="header of version"):
            load_arrays(path)


@pytest.mark.parametrize(
    ("compressed", "whole", "reason"),
    [(None, 1 << 31, "claims 2147483648 bytes and can hold"), (1 << 22, 1 << 31, "claim more than the whole file")],
)
def test_sizes_that_the_archive_claims(tmp_path, compressed, whole, reason):
    """The sizes in the archive's directory (APPNOTE 4.3.12), which is what zipfile believes."""
    path = packed(tmp_path, numbers=npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2147483520,)}"))
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", whole)
    if compressed:
        content[directory + 20 : directory + 24] = struct.pack("<I", compressed)
    path.write_bytes(content)
    with pytest.raises(CorruptDataError, match=reason):
        load_arrays(path)


def test_the_most_that_deflate_packs_is_read(tmp_path):
    """A million zeros, packed 1,000 to one, are no false claim."""
    np.savez_compressed(tmp_path / "arrays.npz", zeros=np.zeros(1 << 22, np.uint8))
    assert (tmp_path / "arrays.npz").stat().st_size < (1 << 22) / 1000 + 500
    assert load_arrays(tmp_path / "arrays.npz")["zeros"].shape == (1 << 22,)


def test_nothing_is_unpickled(tmp_path):
    objects = np.empty(1, object)
    objects[0] = Touches(tmp_path / "touched")
    np.savez(tmp_path / "arrays.npz", objects=objects)
    with pytest.raises(CorruptDataError, match="holds Python objects"):
        load_arrays(tmp_path / "arrays.npz")
    (tmp_path / "arrays.npz").write_bytes(pickle.dumps(objects[0]))
    with pytest.raises(CorruptDataError, match="not a zip file"):
        load_arrays(tmp_path / "arrays.npz")
    packed(tmp_path, objects=pickle.dumps(objects[0]))
    with pytest.raises(CorruptDataError, match="magic string"):
        load_arrays(tmp_path / "arrays.npz")
    assert not (tmp_path / "touched").exists()


def test_other_ways_of_packing_are_refused(tmp_path):
    stream = io.BytesIO()
    np.save(stream, np.arange(3))
    path = packed(tmp_path, zipfile.ZIP_LZMA, numbers=stream.getvalue())
    with pytest.raises(CorruptDataError, match="can hold 0"):
        load_arrays(path)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_is_changed_there_are_numbers_or_an_error_that_says_so(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("changed") / "arrays.npz"
    np.savez(path, numbers=np.arange(3), fractions=np.ones((2, 2)))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of headers that Python 2 might have written
        try:
            arrays = load_arrays(path)
        except CorruptDataError:
            return
    assert all(array.dtype.kind in "biufc" for array in arrays.values())


# Results kept in files, when the folder is missing, the user's own, or not to be written to.


def kept(folder):
    """Return what comes back, and how often it was computed."""
    computed = []

    def compute():
        computed.append(1)
        return {"numbers": np.arange(5)}

    arrays = kept_arrays("five", folder, lambda found: set(found) == {"numbers"}, compute)
    np.testing.assert_array_equal(arrays["numbers"], [0, 1, 2, 3, 4])
    return len(computed)


def test_the_default_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert [kept(None), kept(None)] == [1, 0]
    assert [path.name for path in (tmp_path / "home" / "lit_gelu").iterdir()] == ["five.npz"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "lit_gelu"


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch, caplog):
    """By default nothing is kept, and a message says so; a folder that was asked for is an error."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level("INFO"):
        assert [kept(None), kept(None)] == [1, 1]
    assert "five.npz is not kept for the next run: Cannot write" in caplog.text
    with pytest.raises(UnwritablePathError, match="Cannot write"):
        kept(tmp_path / "file" / "kept")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"text", b"\x93NUMPY\x01\x00"])
def test_a_damaged_file_is_replaced(tmp_path, content):
    (tmp_path / "five.npz").write_bytes(content)
    assert [kept(tmp_path), kept(tmp_path)] == [1, 0]


def test_a_file_that_can_be_read_but_is_not_whole_is_replaced(tmp_path, caplog):
    np.savez(tmp_path / "five.npz", others=np.arange(5))
    with caplog.at_level("INFO"):
        assert [kept(tmp_path), kept(tmp_path)] == [1, 0]
    assert caplog.text.count("is damaged; what it held is computed anew") == 1
