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


@pytest.mark.full  # half a minute and more under the profiler
@pytest.mark.parametrize(
    ("name", "most", "files"),
    [
        ("export_own", 20, {"export/exporter.py", "export/lowering/policy.py"}),
        ("export_tanh", 22, {"export/exporter.py", "export/lowering/policy.py"}),
        ("monitor", 22, {"callbacks/activation_curvature.py", "callbacks/trainer.py"}),
        ("prove", 24, {"export/parity/check.py", "export/parity/criterion.py", "export/parity/report.py"}),
    ],
)
def test_how_far_the_walks_may_be(name, most, files, script, tmp_path):
    walk = script[name](tmp_path)
    assert files <= set(walk)
    assert len(walk) <= most
    assert walk.total() <= 15_188 / 3 or name != "export_tanh"  # of the calls that it once took
