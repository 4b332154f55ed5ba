"""``make test-loaded``: its loops run beside the command, and end with it."""

import sys
from pathlib import Path

import pytest
from child_processes import run_command, wait_until

LOADED = [sys.executable, str(Path(__file__).with_name("loaded.py"))]


def test_without_a_command_it_says_what_it_needs():
    done = run_command(LOADED, check=False)
    assert done.returncode == 2
    assert "give a command" in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes as Linux lists them")
def test_the_loops_run_beside_the_command_and_end_with_it():
    done = run_command([*LOADED, "--loops", "3", "sh", "-c", "pgrep -P $PPID; exit 3"], check=False)
    assert done.returncode == 3
    processes = done.stdout.split()
    assert len(processes) == 4  # the loops and the command itself
    wait_until(lambda: not any(Path("/proc", process).exists() for process in processes), "all have ended")
