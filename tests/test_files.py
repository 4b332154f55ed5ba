"""Nothing that existed is lost when a write fails."""

import os

import pytest

from lit_gelu.files import UnwritablePathError, write_atomically


def test_the_new_file_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "folder" / "model.onnx"
    for content in (b"first", b"second"):
        with write_atomically(path) as temporary:
            assert temporary.suffix == ".onnx"
            temporary.write_bytes(content)
    assert path.read_bytes() == b"second"
    assert [child.name for child in path.parent.iterdir()] == ["model.onnx"]


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def fail_half_way():
        with write_atomically(path) as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_that_open_would_give(tmp_path):
    path, plain = tmp_path / "new.txt", tmp_path / "plain.txt"
    plain.write_text("x")
    with write_atomically(path) as temporary:
        temporary.write_text("x")
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(UnwritablePathError, match="it is a folder"), write_atomically(tmp_path):
        pass


def test_a_file_where_a_folder_is_needed_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(UnwritablePathError, match="Give a path in a folder that you may write to"),
        write_atomically(tmp_path / "file" / "model.onnx"),
    ):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UnwritablePathError, match="Permission denied"), write_atomically(tmp_path / "model.onnx"):
        pass
