"""The README's Python and its commands run as they stand, and say what it says; links are in docs/test_pages.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import run_warm

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def _blocks(language, page=README):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.mark.full
def test_the_python_runs_from_top_to_bottom(tmp_path):
    code = "\n".join(_blocks("python"))
    result = run_warm("-c", code, cwd=tmp_path, env={**os.environ, "LIT_GELU_PLUGINS": "0"})
    assert (tmp_path / "digits.onnx").is_file()
    assert "0.0004732355 at -2.698941, 2.698941" in result.stdout
    assert "0.02033487 at -2.270398, 2.270398" in result.stdout
    assert "(-0.75179" in result.stdout
    assert "features.1.0.block.4: gelu -> bent_identity(amount=0.25)" in result.stdout


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_command_line_runs_when_it_is_pasted(tmp_path):
    page = (ROOT / "docs" / "command_line.md").read_text()
    (block,) = [block for block in _blocks("sh", page) if "lit-gelu curvature" in block]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["sh", "-eu"],
        input=block,
        capture_output=True,
        text=True,
        timeout=1700,
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert {"digits.onnx", "curvature.png"} <= {file.name for file in tmp_path.iterdir()}
    assert result.stdout.count("parity passed") >= 1
    assert "0.0004732355" in result.stdout  # the last line's
