"""``benchmarks/replicas.py`` runs, and measures what it says."""

import re
import sys
from pathlib import Path

import pytest
from child_processes import run_command

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "replicas.py"
SMALL = ["--runs", "2", "--steps", "2", "--rounds", "1", "--only", "tweets"]
OPTIONS = ["--fused", "--executor", "vmap", "--noise", "keys", "--seeds", "1"]
LINE = (
    r"tweets, 2 runs, vmap, fused Adam: in the group [\d.]+ ms; alone [\d.]+ ms, [\d.]+ x; "
    r"alone, keys [\d.]+ ms, [\d.]+ x \(load [\d.]+\)"
)


@pytest.mark.full
def test_a_line_for_a_net():
    lines = run_command([sys.executable, str(SCRIPT), *SMALL, *OPTIONS]).stdout.splitlines()
    assert [line for line in lines if re.fullmatch(LINE, line)], lines
