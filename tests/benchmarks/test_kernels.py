"""``benchmarks/kernels.py``: what its tables hold, small and without a GPU; what times are is not asserted."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from child_processes import run_command

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPT = str(FOLDER / "kernels.py")
RATIOS = [f"{way} {direction}" for direction in ("forward", "backward") for way in ("eager", "fused")]


@pytest.fixture
def module(monkeypatch):
    """Imports a file of the benchmarks."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def made(*parts):
    """Return the record of a call, and its tables: standard output is the record's."""
    options = ["--device", "cpu", "--quick", "--json", "-"]
    done = run_command([sys.executable, "-P", "-W", "ignore", SCRIPT, *parts, *options])
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def record():
    content, tables = made("--speed", "--sweep", "--memory")
    assert "fused ran" in tables
    return content


@pytest.mark.full
def test_the_record_says_that_its_times_mean_nothing(record):
    assert record["quick"]
    assert "nothing is to be read from its times" in record["note"]
    assert record["versions"]["torch"] == torch.__version__
    assert record["machine"]["device"]


@pytest.mark.full
def test_speeds_and_which_code_ran(record):
    for dtype in ("bfloat16", "float16"):
        rows = record["speed"][dtype]
        assert len(rows) == 3
        for row in rows:
            assert all(row[key] > 0 for key in RATIOS)
            assert row["route"] == ["torch", "the tensor lies on cpu, and kernels are for CUDA"]


@pytest.mark.full
def test_a_sweep_without_kernels_finds_no_threshold(record):
    assert [row["elements"] for row in record["sweep"]["bfloat16"]["rows"]] == [4096, 8192, 16384]
    assert record["sweep"]["bfloat16"]["threshold"] is None


def row(elements, forward, backward=0.9, code="kernel"):
    return {"elements": elements, "forward ratio": forward, "backward ratio": backward, "code": code}
