"""``benchmarks/walks.py`` counts calls within the package, and only those; how far the walks may be."""

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
    assert sys.getprofile() is None
    assert set(walk) == {"lit_gelu/activations/naming/spec.py"}


def test_from_a_name_to_a_module(script, tmp_path):
    walk = script["create"](tmp_path)
    assert {"lit_gelu/activations/naming/names.py", "lit_gelu/activations/families/gelu.py"} <= set(walk)
    assert len(walk) <= 4


@pytest.mark.full  # a profiled export takes a minute
def test_from_a_name_to_the_nodes_of_a_file(script, tmp_path):
    walk = script["export_tanh"](tmp_path)
    assert {"export/exporter.py", "export/lowering/policy.py", "lit_gelu/activations/families/gelu.py"} <= set(walk)
    assert len(walk) <= 30
    assert walk.total() <= 15_188 / 3  # of the calls that it once took


@pytest.mark.full  # half a minute under the profiler
def test_a_batch_becomes_a_logged_statistic(script, tmp_path):
    walk = script["monitor"](tmp_path)
    assert {"callbacks/activation_curvature.py", "callbacks/trainer.py"} <= set(walk)
    assert len(walk) <= 30


@pytest.mark.full
def test_a_file_to_its_proof(script, tmp_path):
    walk = script["prove"](tmp_path)
    assert {"export/parity/check.py", "export/parity/criterion.py", "export/parity/report.py"} <= set(walk)
    assert len(walk) <= 28
