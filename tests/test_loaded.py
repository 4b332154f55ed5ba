"""``make test-loaded``: its loops run beside the command, and end with it."""

import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import is_running, run_command, started, wait_until
from loaded import LOOP

LOADED = [sys.executable, str(Path(__file__).with_name("loaded.py"))]


def test_without_a_command_it_says_what_it_needs():
    done = run_command(LOADED, check=False)
    assert done.returncode == 2
    assert "give a command" in done.stderr


def test_a_loop_ends_at_once_when_it_was_orphaned_before_it_began():
    nobody = str(2**31 - 1)  # above the largest number of a process
    assert run_command([sys.executable, "-S", "-c", LOOP, nobody]).returncode == 0


def none_is_left(processes):
    return not any(is_running(int(process)) for process in processes)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes as Linux lists them")
def test_the_loops_run_beside_the_command_and_end_with_it():
    done = run_command([*LOADED, "--loops", "3", "sh", "-c", "pgrep -P $PPID; exit 3"], check=False)
    assert done.returncode == 3
    processes = done.stdout.split()
    assert len(processes) == 4  # the loops and the command itself
    wait_until(lambda: none_is_left(processes), "all have ended")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes as Linux lists them")
def test_the_loops_end_when_it_is_killed():
    listing = [*LOADED, "--loops", "2", "sh", "-c", "pgrep -P $PPID; echo end; read line"]
    with started(listing, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        processes = list(iter(lambda: process.stdout.readline().strip(), "end"))
        assert len(processes) == 3
        process.kill()
        process.stdin.close()  # ends the command
        wait_until(lambda: none_is_left(processes), "all have ended")
