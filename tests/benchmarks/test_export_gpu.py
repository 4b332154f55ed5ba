"""``benchmarks/export_gpu.py`` runs on the CPU at small sizes: every column, and errors of rounding alone."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "export_gpu.py"
QUICK = ["--device", "cpu", "--small", "--seconds", "0", "--no-compile"]


def measured(monkeypatch, tmp_path, *arguments):
    file = tmp_path / "reports.json"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *QUICK, "--json", str(file), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return json.loads(file.read_text())


def test_the_block(monkeypatch, tmp_path, capsys):
    (report,) = measured(monkeypatch, tmp_path, "--only", "block")["block"]
    variants = [row["variant"] for row in report["rows"]]
    assert variants[:2] == ["torch eager", "onnxruntime"]
    assert all(row["error"] < 1e-5 and row["latency"]["p50"] > 0 for row in report["rows"])
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith("block") and variant in line for line in lines) for variant in variants)


@pytest.mark.full
def test_every_net(monkeypatch, tmp_path):
    reports = measured(monkeypatch, tmp_path)
    assert {name: len(found) for name, found in reports.items()} == {
        "cifar10": 1,
        "wrn-40-4": 1,
        "mnist": 2,
        "block": 1,
    }
    for report in (one for found in reports.values() for one in found):
        assert all(row["error"] < 1e-5 for row in report["rows"])


@pytest.mark.gpu
@pytest.mark.full
def test_on_cuda(monkeypatch, tmp_path):
    reports = measured(monkeypatch, tmp_path, "--device", "cuda")
    for report in (one for found in reports.values() for one in found):
        assert report["provider"] == "CUDAExecutionProvider"
        assert all(row["error"] < 0.01 for row in report["rows"])
