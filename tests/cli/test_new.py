"""``lit-gelu new``: a project that works as it stands, or a refusal, and never half of one."""

import os
import re
import sys

import pytest
from child_processes import command_line, run_command

from lit_gelu.cli.new import write_project
from lit_gelu.errors import ArgumentError


def names(folder):
    return [path.name for path in folder.iterdir()]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "spiral-net"
    write_project(folder)
    return folder


def test_the_files_are_there_and_nothing_else(project):
    files = sorted(path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file())
    package = [f"spiral_net/{name}.py" for name in ("__init__", "data", "export", "model")]
    rest = [".gitignore", "README.md", "config.yaml", "pyproject.toml", "tests/test_project.py"]
    assert files == sorted([*rest, *package])
    assert names(project.parent) == ["spiral-net"]  # no temporary folder is left


@pytest.mark.parametrize("name", ["My Project", "3d", "lambda", "über", "x" * 61, "json", "torch", "lit-gelu", "tests"])
def test_a_name_that_cannot_be_used(name, tmp_path):
    with pytest.raises(ArgumentError):
        write_project(tmp_path / "folder" / name)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name in ("file", "folder"):
        with pytest.raises(ArgumentError):
            write_project(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert names(tmp_path / "folder") == []


def test_what_fails_in_the_midst_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_project(tmp_path / "waves")
    assert names(tmp_path) == []


@pytest.mark.full
def test_the_commands_of_the_readme_run_in_order(project):
    block = re.search(r"```sh\n(.*?)```", (project / "README.md").read_text(), re.DOTALL)[1]
    environment = os.environ | {"PYTHONPATH": str(project)}
    for line in block.strip().splitlines():
        words = line.split()
        command = command_line(*words[1:]) if words[0] == "lit-gelu" else [sys.executable, *words[1:]]
        run_command(command, cwd=project, env=environment)
    assert (project / "model.onnx").is_file()
    log = (project / "runs/spiral_net/version_0/metrics.csv").read_text()
    assert "curvature/net.1/excess_kurtosis" in log.splitlines()[0]
