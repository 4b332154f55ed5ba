"""``benchmarks/walks.py`` counts calls within the package, and only those."""

import runpy
import sys
from pathlib import Path

import pytest

from lit_gelu.activations.naming.spec import ActivationSpec


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "walks.py"))


def test_calls_of_the_package_are_counted_and_no_others(script):
    with script["counted"]() as walk:
        sorted([3, 1, 2], key=lambda number: -number)
        ActivationSpec("gelu")
        ActivationSpec("gelu")
    assert sys.getprofile() is None
    assert set(walk.files) == {"lit_gelu/activations/naming/spec.py"}
    assert walk.calls == walk.files["lit_gelu/activations/naming/spec.py"] >= 4
    assert walk.calls % 2 == 0
    assert walk.changes == 1


def test_from_a_name_to_a_module(script):
    files = script["create"]().files
    assert {"lit_gelu/activations/registry.py", "lit_gelu/activations/families/gelu.py"} <= set(files)
