"""The ONNX files behind the explorer give f, f' and f'' as mpmath has them; their list is what the registry says."""

import importlib
import inspect
import json
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from activation_oracles import CASES

DOCS = Path(__file__).parents[3] / "docs"
MODELS = DOCS / "explorer" / "models"
POINTS = (-9.3, -2.1, -0.4, 0.7, 3.6)


@pytest.fixture
def files(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("_explorer_files")


@cache
def manifest():
    return json.loads((MODELS / "manifest.json").read_text())


def computed(file, x, values):
    """Run a file in Python on inputs and parameters."""
    session = onnxruntime.InferenceSession(MODELS / file, providers=["CPUExecutionProvider"])
    numbers = {key: np.array([value], np.float32).reshape(()) for key, value in values.items()}
    return session.run(list(manifest()["outputs"]), {"x": np.asarray(x, np.float32), **numbers})


def cases_of(each):
    """Return the definitions that a file can compute: those of its function whose other arguments are its own."""
    moved = {parameter.argument for parameter in each.parameters}
    parameters = inspect.signature(inspect.unwrap(each.entry.function)).parameters
    for case in CASES:
        values = (
            {key: case.parameters.get(key, parameters[key].default) for key in (*moved, *each.fixed)}
            if (case.name == each.entry.function.__name__)
            else None
        )
        if values is not None and all(values[key] == value for key, value in each.fixed.items()):
            yield case, {key: values[key] for key in moved}


def test_the_list_is_what_the_registry_says(files):
    assert json.loads(json.dumps(files.manifest())) == manifest(), "Run `python docs/make_explorer.py --models`."


def test_files_agree_with_their_definitions(files):
    without = set()
    for each in {each.file: each for each in files.explored()}.values():
        tried = 0
        for case, values in cases_of(each):
            exact = np.array([[float(value) for value in case.exact(float(np.float32(x)))[:3]] for x in POINTS]).T
            outputs = np.array(computed(each.file, POINTS, values), dtype=np.float64)
            assert np.abs(outputs - exact).max() <= 1e-6 * max(1.0, np.abs(exact).max()), (each.file, str(case))
            tried += 1
        without |= set() if tried else {each.file}
    assert without == {"clipped_gelu_min_m10_max_10.onnx"}  # its own test is below


def test_gelu_10_is_gelu_up_to_10():
    x = np.linspace(-12, 12, 25)
    for bounded, plain in zip(
        computed("clipped_gelu_min_m10_max_10.onnx", x, {}), computed("gelu_none.onnx", x, {}), strict=True
    ):
        assert np.array_equal(bounded[x < 10], plain[x < 10])
    assert np.array_equal(computed("clipped_gelu_min_m10_max_10.onnx", [11.0], {}), [[10.0], [0.0], [0.0]])


@pytest.mark.full
def test_the_files_are_what_is_exported_now(files, tmp_path):
    files.write_models(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in MODELS.iterdir()}
    x = np.linspace(-8, 8, 401)
    for entry in manifest()["activations"]:
        values = {parameter["argument"]: parameter["default"] for parameter in entry["parameters"]}
        now = onnxruntime.InferenceSession(tmp_path / entry["file"], providers=["CPUExecutionProvider"])
        numbers = {key: np.array([value], np.float32).reshape(()) for key, value in values.items()}
        fresh = now.run(None, {"x": x.astype(np.float32), **numbers})
        for a, b in zip(fresh, computed(entry["file"], x, values), strict=True):
            assert np.allclose(a, b, rtol=1e-6, atol=1e-6)
