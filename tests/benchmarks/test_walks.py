"""``benchmarks/walks.py`` counts calls within the package, and only those."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.curvature import DeadUnitWindow, HistogramBins
from lit_gelu.curvature.plots import HeatMapHistory


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
    assert walk.calls == walk.files["lit_gelu/activations/naming/spec.py"] >= 2
    assert walk.calls % 2 == 0
    assert walk.changes == 1


def test_from_a_name_to_a_module(script):
    files = script["create"]().files
    assert {"lit_gelu/activations/registry.py", "lit_gelu/activations/families/gelu.py"} <= set(files)
    assert len(files) <= 5


def test_from_a_name_to_the_nodes_of_a_file(script):
    """Below a third of the 15,188 calls in 73 files that it once took."""
    walk = script["export_tanh"]()
    assert {"export/exporter.py", "export/lowering/policy.py", "lit_gelu/activations/families/gelu.py"} <= set(
        walk.files
    )
    # The oldest torch writes the sizes of a flattening as nodes, which one file more takes out again. Five of the
    # others run some rows alone, to tell whether rows see each other. One checks the facts of an activation.
    assert len(set(walk.files) - {"export/shape_arithmetic.py"}) <= 48
    assert walk.calls <= 15_188 / 3


def test_a_batch_becomes_a_logged_statistic_through_five_objects(script):
    walk = script["monitor"]()
    assert set(walk.objects) == {
        "ActivationCurvatureMonitor",
        "ActivationRecorder",
        "ActivationMeasurement",
        "ActivationEvaluator",
        "ActivationLog",
    }
    assert len(walk.files) <= 49  # two of them read the code, for calls that are not watched without a sample


def test_objects_are_counted_on_the_way_alone(script):
    with script["counted"]("counts", "state_dict") as walk:
        window = DeadUnitWindow(1, [1])
        history = HeatMapHistory(["mean"])
        window.counts()
        history.add(0, {})
        history.state_dict()
        HistogramBins().count(torch.zeros(1, 1))
    assert set(walk.objects) == {"HeatMapHistory"}  # a window is beside the way
