"""``benchmarks/replicas.py`` runs, and measures what it says."""

import runpy
import sys
from pathlib import Path


def test_two_lines_for_a_net(monkeypatch, capsys):
    path = Path(__file__).parents[2] / "benchmarks" / "replicas.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--runs", "2", "--steps", "2", "--only", "tweets"])
    runpy.run_path(str(path), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tweets")]
    assert [line.partition(":")[0] for line in lines] == ["tweets, 2 runs, Adam", "tweets, 2 runs, fused Adam"]
    assert all(line.endswith(" x") for line in lines)


def test_noise_by_key(monkeypatch, capsys):
    path = Path(__file__).parents[2] / "benchmarks" / "replicas.py"
    arguments = ["--runs", "2", "--steps", "2", "--only", "tweets", "--noise", "keys", "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tweets")]
    kernels = ["Adam", "fused Adam"]
    assert [line.partition(":")[0] for line in lines] == [f"tweets, 2 runs, {name}, noise by key" for name in kernels]
