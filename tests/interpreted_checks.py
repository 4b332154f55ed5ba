"""Scripts of checks in Triton's interpreter, seen from the tests: what they find."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from child_processes import run_command


def tests_of(script: str) -> Callable[[], None]:
    """Return the test of a script's checks: one for all, or each process of pytest-xdist would run the script."""

    def test_checks() -> None:
        pytest.importorskip("triton", reason="Triton has no build for this system")
        found = run(script)
        assert found, f"{script} has no checks"
        failed = {name: trace for name, trace in found.items() if trace}
        assert not failed, "\n\n".join(f"{name}:\n{trace}" for name, trace in failed.items())

    return test_checks


def run(script: str) -> dict[str, str]:
    """Return the traceback of each check, nothing for one that passed."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        run_command([sys.executable, "-W", "ignore", str(_path(script)), str(found)])
        return json.loads(found.read_text())


def _path(script: str) -> Path:
    return Path(__file__).with_name(script)
