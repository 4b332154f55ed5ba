"""Benchmarks run small and print a row for each case; what their times are is not asserted."""

import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest
from child_processes import run_command
from compiled_activations import compiled  # noqa: F401 - a fixture

from lit_gelu.activations import ActivationRegistry
from lit_gelu.export.lowering.lowering_table import row_key

FOLDER = Path(__file__).parents[2] / "benchmarks"


def printed(script, words):
    return run_command([sys.executable, "-P", str(FOLDER / script), *words.split()]).stdout.splitlines()


@pytest.mark.full
def test_the_predictor_has_a_line_for_each_net_and_batch_size():
    head, *lines = printed("predictor.py", "--seconds 0.01 --nets 8-16-4 mnist --batches 1 8")
    assert head.split() == ["net", "batch", "onnxruntime", "arrays", "tensors"]
    assert [line.split()[:2] for line in lines] == [["8-16-4", "1"], ["8-16-4", "8"], ["mnist", "1"], ["mnist", "8"]]
    assert all(re.search(r"\d+\.\d us +\d+\.\d\d +\d+\.\d\d$", line) for line in lines)


@pytest.mark.full
def test_replicas_have_a_line_for_a_net():
    lines = printed("replicas.py", "--runs 2 --steps 2 --rounds 1 --only tweets")
    (line,) = [line for line in lines if line.startswith("tweets, 2 runs: one run ")]
    assert "group/alone " in line
    assert "group/loop " in line


@pytest.mark.full
@pytest.mark.usefixtures("compiled")
def test_kernels_have_a_row_for_each_case(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    importlib.import_module("kernels").main(["--elements", "4096", "--rounds", "1", "--cases", "1"])
    last = capsys.readouterr().out.splitlines()[-1].split(" | ")
    assert last[:2] == ["gelu", "bfloat16"]
    assert last[4] == "formula"
    assert float(last[6]) < 1 < float(last[5])


def test_every_activation_with_a_lowering_has_a_row_of_export_cpu_and_gelu_at_opset_18_too():
    script = runpy.run_path(str(FOLDER / "export_cpu.py"), run_name="export_cpu")
    registry = ActivationRegistry()
    resolved = [registry.resolve(name) for name in registry.list_activations()]
    cases = {name: opset for name, _, opset in script["cases"]([])}
    lowered = {str(spec) for spec in resolved if row_key(spec.name, registry.resolve(spec).arguments) is not None}
    assert lowered | set(script["GOALS"]) <= cases.keys()
    assert len(lowered) > 25
    assert [opset for name, opset in cases.items() if "opset 18" in name] == [18, 18]
