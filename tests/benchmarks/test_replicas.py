"""``benchmarks/replicas.py`` runs, and measures what it says."""

import re
import sys
from pathlib import Path

import pytest
from child_processes import run_command

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "replicas.py"
SMALL = ["--runs", "2", "--steps", "2", "--rounds", "1", "--only", "tweets"]
LINE = r"tweets, 2 runs, {}: in the group [\d.]+ ms; alone [\d.]+ ms, [\d.]+ x{} \(load [\d.]+\)"


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "kind", "further"),
    [
        ([], "written", ""),
        (["--fused", "--executor", "vmap"], "vmap, fused Adam", ""),
        (["--noise", "keys", "--seeds", "1"], "written", r"; alone, keys [\d.]+ ms, [\d.]+ x"),
    ],
)
def test_a_line_for_a_net(options, kind, further):
    printed = run_command([sys.executable, str(SCRIPT), *SMALL, *options]).stdout.splitlines()
    lines = [line for line in printed if line.startswith("tweets")]
    assert [bool(re.fullmatch(LINE.format(kind, further), line)) for line in lines] == [True], printed
