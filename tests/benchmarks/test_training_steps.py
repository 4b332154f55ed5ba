"""``benchmarks/training_steps.py`` runs, and measures what it says."""

import runpy
import sys
from pathlib import Path


def test_two_lines_a_net(monkeypatch, capsys):
    path = Path(__file__).parents[2] / "benchmarks" / "training_steps.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--runs", "1"])
    script = runpy.run_path(str(path))
    steps = [script["steps_of"](script["NETS"]["tweets"], fused) for fused in (False, True)]
    assert [made._optimizer.param_groups[0]["fused"] for made in steps] == [None, True]
    script["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines] == [
        f"{name}, {part}" for name in script["NETS"] for part in ("step", "update alone")
    ]
    assert all(line.endswith(" x") for line in lines)
