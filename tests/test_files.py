"""Nothing that existed is lost when a write fails."""

import errno
import os
import signal
import stat
import tempfile
from pathlib import Path

import pytest
from child_processes import run_forked

from lit_gelu.cli.terminal import write_text
from lit_gelu.files import UnwritablePathError, is_file, is_folder, is_special, require_writable, write_atomically


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


def _killed_while_writing(folder):
    with write_atomically(folder / "model.onnx") as temporary:
        temporary.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.forks
def test_a_process_that_is_killed_leaves_the_old_file_as_it_was(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    assert run_forked(_killed_while_writing, tmp_path) == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (left,) = [child for child in tmp_path.iterdir() if child != path]
    assert left.name.startswith(".model-")
    with write_atomically(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"


def test_names_that_are_long_already(tmp_path):
    path = tmp_path / f"{'m' * 240}.onnx"
    with write_atomically(path) as temporary:
        temporary.write_text("x")
    assert path.read_text() == "x"


def test_the_content_is_on_the_disk_before_it_takes_the_place_of_the_old(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace

    def noted(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("rename"), replace(*paths)))
    with write_atomically(tmp_path / "model.onnx") as temporary:
        temporary.write_bytes(b"12345")
    assert done == [5, "rename", "folder"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
def test_a_full_disk_says_what_to_do_and_leaves_the_old_file(tmp_path, number):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def fill():
        with write_atomically(path) as temporary:
            temporary.write_bytes(b"half")
            raise OSError(number, os.strerror(number))

    with pytest.raises(UnwritablePathError, match=rf"{os.strerror(number)}\. Make room on that disk") as caught:
        fill()
    assert caught.value.__cause__.errno == number
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "number"), [(OSError("broken"), errno.EIO), (UnwritablePathError("said already"), errno.ENOSPC)]
)
def test_other_failures_are_passed_on_as_they_are(tmp_path, error, number):
    error.errno = number
    with pytest.raises(OSError, match=error.args[0]) as caught, write_atomically(tmp_path / "model.onnx"):
        raise error
    assert caught.value is error
    assert list(tmp_path.iterdir()) == []


def test_whether_a_path_can_be_written_is_known_early_and_changes_nothing(tmp_path):
    (tmp_path / "old.onnx").write_bytes(b"old")
    require_writable(tmp_path / "old.onnx")
    require_writable(tmp_path / "new" / "model.onnx")
    assert (tmp_path / "old.onnx").read_bytes() == b"old"
    assert sorted(child.name for child in tmp_path.rglob("*")) == ["new", "old.onnx"]
    with pytest.raises(UnwritablePathError, match="it is a folder"):
        require_writable(tmp_path)


def test_the_mask_of_permissions_stays_as_it_was_and_counts(tmp_path):
    before = os.umask(0o027)
    try:
        with write_atomically(tmp_path / "model.onnx") as temporary:
            temporary.write_bytes(b"content")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert (tmp_path / "model.onnx").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("path", ["with\0nul", "x" * 5000, "\ud800"])
def test_no_file_and_no_folder_has_an_impossible_path(path):
    assert not is_file(path)
    assert not is_folder(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_or_a_device_stays_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnwritablePathError, match="a device or a pipe"):
        require_writable(tmp_path / "pipe")
    with pytest.raises(UnwritablePathError, match="a device or a pipe"), write_atomically(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()
    assert is_special(tmp_path / "pipe")
    assert not any(map(is_special, (tmp_path, tmp_path / "nothing", "with\0nul")))
    with (tmp_path / "log").open("w") as log:  # as a shell's ``2> log`` gives it
        log.write("before\n")
        log.flush()
        write_text("report", f"/dev/fd/{log.fileno()}")
    assert (tmp_path / "log").read_text() == "before\nreport\n"


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "folder" / "other")
    for name, written in (("link", "file"), ("dangling", "other")):
        with write_atomically(tmp_path / name) as temporary:
            temporary.write_text("new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "folder" / written).read_text() == "new"


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
    assert ": Permission denied. Give a path" in message
    assert "closed" in message
