"""``benchmarks/replicas.py`` runs, and measures what it says."""

import sys
from pathlib import Path

import pytest
from child_processes import run_command

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "replicas.py"


@pytest.mark.full
def test_a_line_for_a_net():
    small = ["--runs", "2", "--steps", "2", "--rounds", "1", "--only", "tweets"]
    printed = run_command([sys.executable, "-P", str(SCRIPT), *small]).stdout.splitlines()
    (line,) = [line for line in printed if line.startswith("tweets, 2 runs: one run ")]
    assert "group/alone " in line
    assert "group/loop " in line
