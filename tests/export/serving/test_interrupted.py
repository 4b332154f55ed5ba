"""A disk that fills, and a process that is killed: the repository holds what it held, or what was to be written."""

import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch
from child_processes import run_forked
from export_cases import gelu_net

from lit_gelu.export import export_onnx
from lit_gelu.export.serving import write_triton_repository
from lit_gelu.files import UnwritablePathError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6))
    return path


def visible(repository):
    """What a server reads: by model, the bytes of its files, in folders that do not begin with a dot."""
    found = (file.relative_to(repository) for file in repository.rglob("*") if file.is_file())
    return {f.as_posix(): (repository / f).read_bytes() for f in found if not any(p[0] == "." for p in f.parts)}


def _write_without_room(path, repository, message):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # Python ignores SIGXFSZ: EFBIG, as ENOSPC
    try:
        write_triton_repository(path, repository, device="cpu", overwrite=True)
    except UnwritablePathError as error:
        message.write_text(str(error))


@pytest.mark.parametrize("there", [False, True])
def test_a_disk_that_fills(path, tmp_path, there):
    repository, message = tmp_path / "repository", tmp_path / "message.txt"
    if there:
        write_triton_repository(path, repository, device="cpu")
    before = visible(repository)
    assert path.stat().st_size > 1000
    assert run_forked(_write_without_room, path, repository, message) == 0
    assert "File too large" in message.read_text()
    assert visible(repository) == before
    assert not list(tmp_path.rglob(".net-*"))


def _write_and_die(path, repository, moment):
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    rename, copyfile = Path.rename, shutil.copyfile

    def half(source, target):
        copyfile(source, target)
        os.truncate(target, 100)
        die()

    def between(self, target):
        rename(self, target)
        if Path(target).name.endswith("-replaced"):
            die()

    if moment == "half copied":
        shutil.copyfile = half
    else:
        Path.rename = {"before the rename": die, "between the renames": between}[moment]
    write_triton_repository(path, repository, device="cpu", overwrite=True)


@pytest.mark.parametrize("moment", ["half copied", "before the rename"])
@pytest.mark.parametrize("there", [False, True])
def test_a_process_that_is_killed(path, tmp_path, moment, there):
    if there:
        write_triton_repository(path, tmp_path, device="cpu").model.write_bytes(b"older")
    before = visible(tmp_path)
    assert run_forked(_write_and_die, path, tmp_path, moment) == -signal.SIGKILL
    assert visible(tmp_path) == before
    assert list(tmp_path.parent.rglob(".net-*"))
    assert write_triton_repository(path, tmp_path, device="cpu", overwrite=True).model.read_bytes() == path.read_bytes()
    assert not list(tmp_path.parent.rglob(".net-*"))


def test_between_the_two_renames_the_old_version_is_kept_aside(path, tmp_path):
    written = write_triton_repository(path, tmp_path, device="cpu")
    written.model.write_bytes(b"older")
    assert run_forked(_write_and_die, path, tmp_path, "between the renames") == -signal.SIGKILL
    assert not written.model.exists()
    (kept,) = written.folder.glob(".net-*-replaced/model.onnx")
    assert kept.read_bytes() == b"older"
