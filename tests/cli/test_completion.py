"""``lit-gelu completion``: what a shell completes."""

import shutil
import subprocess

import pytest

from lit_gelu.cli import completion
from lit_gelu.cli.main import main

# As bash calls it: the words so far, the number of the one to complete, then the command, that word and the one before.
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_lit_gelu "$1" "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def root():
    return completion.root_parser()


@pytest.fixture
def scripts(root, monkeypatch, capsys):
    """What the command prints for a shell."""
    monkeypatch.setattr(completion, "root_parser", lambda: root)

    def script(shell):
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return script


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_bash(scripts, tmp_path):
    path = tmp_path / "lit-gelu"
    path.write_text(scripts("bash"))
    (tmp_path / "net.onnx").touch()
    (tmp_path / "data").mkdir()
    for words, completions in {
        "exp": "export",
        "export --tar": "--target",
        "export --target ort": "ort-cpu ort-cuda",
        "parity net": "net.onnx",
        "export --data-root da": "data",
        "activations l": "list",
        "activations list --js": "--json",
        "fit --ck": "--ckpt_path",
        "test --trainer.max_e": "--trainer.max_epochs",
        "curvature last.ckpt --split v": "val",
    }.items():
        command = ["bash", "--norc", "-c", BASH, "bash", str(path), "lit-gelu", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600, check=True)
        assert done.stdout.split() == completions.split(), words
        assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_know_commands_and_options(shell, scripts):
    script = scripts(shell)
    assert "curvature" in script
    assert "ort-cuda" in script


def test_an_unknown_shell(capsys):
    assert main(["completion", "sh"]) == 2
    assert "bash" in capsys.readouterr().err
