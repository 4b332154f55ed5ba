"""``benchmarks/export_cpu.py``: a row for every activation, beside the plain file, and verdicts that follow."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

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


@pytest.mark.parametrize("count", [6, 9, 10, 41, 99])
def test_the_interval_of_the_median_is_that_of_its_rank(script, count):
    values = np.random.default_rng(count).normal(size=count)
    low, high = script["median_interval"](values.tolist())
    left = int(np.sum(values < low))  # so many lie below: the true median is left of it if no more are below that
    assert np.sum(values > high) == left
    assert 2 * binom.cdf(left, count, 0.5) <= 0.05 < 2 * binom.cdf(left + 1, count, 0.5)


def test_few_values_give_their_range(script):
    assert script["median_interval"]([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_verdicts(script):
    sure, wide = [1.0] * 20, [0.5, 1.5] * 10
    assert row(script, sure).verdict == "met"
    assert row(script, [0.9] * 20).verdict == "below"
    assert row(script, wide).verdict == "undecided"
    assert row(script, [0.9] * 20, errors=(np.inf, 1e-7)).verdict == "plain is wrong"
    assert row(script, sure, errors=(np.inf, 1e-7)).verdict == "met"
    assert row(script, [1.9] * 20, name="gelu at opset 18").verdict == "below"
    assert "below (2.0)" in row(script, [1.9] * 20, name="gelu at opset 18").line(1 << 20)


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
