"""``benchmarks/export_cpu.py``: a row for every activation, beside the plain file, and verdicts that follow."""

import runpy
import sys
from pathlib import Path

import pytest

from lit_gelu.export.lowering.lowering_table import row_key

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "export_cpu.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT), run_name="export_cpu")


def row(script, ratios, errors=(1e-7, 1e-7), name="relu"):
    return script["Row"](name, [(ratio, 1.0) for ratio in ratios], errors, "Relu")


def test_every_activation_with_a_lowering_has_a_row_and_gelu_at_opset_18_too(script):
    from lit_gelu.activations import ActivationRegistry

    registry = ActivationRegistry()
    resolved = [registry.resolve(name) for name in registry.list_activations()]
    names = [name for name, _, _ in script["cases"]([])]
    lowered = {str(spec) for spec in resolved if row_key(spec.name, registry.resolve(spec).arguments) is not None}
    assert lowered <= set(names)
    assert len(lowered) > 25
    assert [opset for name, _, opset in script["cases"]([]) if "opset 18" in name] == [18, 18]
    assert set(script["GOALS"]) <= set(names)


@pytest.mark.full
def test_a_run(monkeypatch, capsys):
    arguments = ["--elements", "4096", "--rounds", "3", "--most", "3", "mish", "log_sigmoid"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    found = {}
    for name in ("mish", "log_sigmoid"):
        (line,) = (line for line in lines if line.startswith(f"{name} "))
        rounds, *errors = line.split("]")[1].split()[:3]
        assert rounds == "3"
        found[name] = [float(error) for error in errors]
    assert found["log_sigmoid"][0] == float("inf")  # torch's own is -inf below -17
    assert max(found["mish"][1], found["log_sigmoid"][1]) < 2.5e-6
    assert any(line.startswith("2 rows; goals met: ") for line in lines)
