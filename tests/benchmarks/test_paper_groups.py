"""``benchmarks/paper_groups.py`` compares a group with its runs alone."""

import re
import runpy
from pathlib import Path

import pytest
from paper_runs import DIGITS, request

from lit_gelu.paper.planning import RunRequest


@pytest.fixture
def benchmark_of(monkeypatch):
    """Return the script, on a table of small experiments."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "paper_groups.py"))

    def asked(preset, only):
        assert preset == "quick"
        return RunRequest(preset, only, table=request(DIGITS).table)

    monkeypatch.setitem(script["main"].__globals__, "RunRequest", asked)
    return script["main"]


def test_a_line_for_each_experiment(benchmark_of, capsys):
    benchmark_of(["--only", "digits", "--most", "3"])
    number = r"[\d.]+"
    line = rf"digits \(quick\), 2 runs together: {number} s a run, alone {number} s: {number} of the time"
    assert re.fullmatch(rf"{line} \(load {number}\)\n", capsys.readouterr().out)


def test_nothing_to_compare(benchmark_of, capsys):
    benchmark_of(["--only", "digits", "--most", "1"])
    assert capsys.readouterr().out == "digits: no runs that are made together\n"
