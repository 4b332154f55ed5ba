"""Scripts of checks in Triton's interpreter, seen from the tests: what they find."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from child_processes import run_warm


def tests_of(script: str, *few: str) -> Callable[[str], None]:
    """Return the test of a script's checks, one for all or each process of pytest-xdist would run the script.

    Where a few are named, `make test` makes these and `make test-full` all others.
    """
    parts = ["few", pytest.param("others", marks=pytest.mark.full)] if few else ["all"]

    @pytest.mark.parametrize("part", parts)
    def test_checks(part: str) -> None:
        pytest.importorskip("triton", reason="Triton has no build for this system")
        found = run(script, *(["not"] if part == "others" else []), *few)
        assert found, f"{script} has no checks"
        assert part != "few" or found.keys() == set(few)
        failed = {name: trace for name, trace in found.items() if trace}
        assert not failed, "\n\n".join(f"{name}:\n{trace}" for name, trace in failed.items())

    return test_checks


def run(script: str, *names: str) -> dict[str, str]:
    """Return the traceback of each check, nothing for one that passed: of those named, or behind "not" of others."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        run_warm(_path(script), found, *names, is_interpreted=True)
        return json.loads(found.read_text())


def _path(script: str) -> Path:
    return Path(__file__).with_name(script)
