"""``benchmarks/replicas.py`` runs, and measures what it says."""

import re
import runpy
import sys
from pathlib import Path

import pytest

SMALL = ["--runs", "2", "--steps", "2", "--rounds", "1", "--only", "tweets"]
LINE = r"tweets, 2 runs, {}: in the group [\d.]+ ms; alone [\d.]+ ms, [\d.]+ x{} \(load [\d.]+\)"


@pytest.mark.parametrize(
    ("options", "kind", "further"),
    [
        ([], "written", ""),
        (["--fused", "--executor", "vmap"], "vmap, fused Adam", ""),
        (["--noise", "keys", "--seeds", "1"], "written", r"; alone, keys [\d.]+ ms, [\d.]+ x"),
    ],
)
def test_a_line_for_a_net(monkeypatch, capsys, options, kind, further):
    path = Path(__file__).parents[2] / "benchmarks" / "replicas.py"
    monkeypatch.setattr(sys, "argv", [str(path), *SMALL, *options])
    runpy.run_path(str(path), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tweets")]
    assert [bool(re.fullmatch(LINE.format(kind, further), line)) for line in lines] == [True], lines
