"""Results kept in files, when the folder is missing, the user's own, or not to be written to."""

import numpy as np
import pytest

from lit_gelu.data.kept_arrays import default_folder, kept_arrays
from lit_gelu.files import UnwritablePathError


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
