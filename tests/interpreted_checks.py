"""Scripts of checks in Triton's interpreter, seen from the tests: their names, and what they find."""

import ast
import functools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from child_processes import run_command


def names_in(script: str) -> list[str]:
    """Return the names of a script's checks, without running it."""
    for statement in ast.parse(_path(script).read_text()).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == "CHECKS":
            return [name.id for name in statement.value.elts]
    raise LookupError(f"{script} has no CHECKS.")


def tests_of(script: str) -> Callable[[str], None]:
    """Return a test of each check; the script runs once."""

    @pytest.mark.parametrize("name", names_in(script))
    def test_check(name: str) -> None:
        pytest.importorskip("triton", reason="Triton has no build for this system")
        found = run(script)
        assert not found[name], found[name]

    return test_check


@functools.cache
def run(script: str) -> dict[str, str]:
    """Return the traceback of each check, nothing for one that passed."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        run_command([sys.executable, "-W", "ignore", str(_path(script)), str(found)])
        return json.loads(found.read_text())


def _path(script: str) -> Path:
    return Path(__file__).with_name(script)
