"""``benchmarks/export_cpu.py``: a row for every activation, beside the plain file, and verdicts that follow."""

import runpy
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
