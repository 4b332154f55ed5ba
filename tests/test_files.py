"""Nothing that existed is lost when a write fails."""

import os
import tempfile
from pathlib import Path

import pytest
from child_processes import run_forked

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


def _write_as_nobody(folder):
    """Root may write anywhere, so a root becomes somebody else first."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    for name in ("open", "closed"):
        try:
            with write_atomically(folder / name / "model.onnx") as temporary:
                temporary.write_text("written")
        except UnwritablePathError as error:
            (folder / "open" / "message.txt").write_text(str(error))


@pytest.mark.forks
def test_an_unwritable_folder_is_refused():
    with tempfile.TemporaryDirectory() as name:  # not `tmp_path`: the folders above that are closed to others
        folder = Path(name)
        folder.chmod(0o755)
        for part, mode in (("open", 0o777), ("closed", 0o555)):
            (folder / part).mkdir()
            (folder / part).chmod(mode)
        assert run_forked(_write_as_nobody, folder) == 0
        assert (folder / "open" / "model.onnx").read_text() == "written"
        assert list((folder / "closed").iterdir()) == []
        message = (folder / "open" / "message.txt").read_text()
    assert "Permission denied" in message
    assert "closed" in message
