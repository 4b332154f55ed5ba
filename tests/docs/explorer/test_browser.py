"""The explorer in Chromium: its values are Python's; sliders redraw; the address keeps the view; people can use it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_gelu import activations
from lit_gelu.activations import functional

pytestmark = pytest.mark.full

MANIFEST = json.loads((Path(__file__).parents[3] / "docs/explorer/models/manifest.json").read_text())
ENTRIES = {entry["name"]: entry for entry in MANIFEST["activations"]}
GRID = np.concatenate([np.linspace(-12, 12, 961), [-1e-3, 1e-3, -30.0, 30.0]])
COMPUTE = """
const { Curves, readManifest } = await import("./curves.js");
const [name, x, values] = args;
const curves = await Curves.open((await readManifest()).byName.get(name));
const found = await curves.at(x, values);
return ["value", "first", "second"].map((key) => Array.from(found[key]));
"""
GAINS = """
const { Curves, readManifest } = await import("./curves.js");
const { tabulate, moments, gains } = await import("./quadrature.js");
const [name, values, inputs] = args;
const curves = await Curves.open((await readManifest()).byName.get(name));
const table = await tabulate(curves, values);
return inputs.map(([mean, std]) => gains(moments(table, mean, std)));
"""


def settings(entry):
    """Return values of an activation's parameters: the defaults, and others within its sliders."""
    parameters = entry["parameters"]
    yield {p["name"]: p["default"] for p in parameters}
    if parameters:
        yield {p["name"]: float(np.float32(0.7 * p["low"] + 0.3 * p["high"])) for p in parameters}


SETTINGS = [
    pytest.param(name, values, id=f"{name}-{which}")
    for name, entry in ENTRIES.items()
    for which, values in enumerate(settings(entry))
]


@pytest.fixture(scope="module")
def opened(browser, explorer):
    """The page, opened once: what is tested here are its modules."""
    browser.open(explorer)
    yield browser
    assert browser.errors() == []


@pytest.mark.parametrize(("name", "values"), SETTINGS)
def test_values_are_those_of_python(opened, name, values):
    curves = opened.run(COMPUTE, name, GRID.tolist(), values)
    rounded = {key: float(np.float32(value)) for key, value in values.items()}  # as the graph gets them
    module = activations.create(name, **rounded).double()
    x = torch.from_numpy(GRID.astype(np.float32).astype(np.float64))
    for order, curve in enumerate(curves):
        exact = functional.derivative(module, x, order).detach().numpy()
        error = np.abs(np.array(curve) - exact) / np.maximum(1.0, np.abs(exact))
        assert error.max() <= 1e-6, (order, GRID[error.argmax()], error.max())


INPUTS = [(0.0, 1.0), (0.0, 0.3), (-1.0, 3.0), (-1.0, 0.3), (1.5, 2.0)]  # mean and standard deviation


@pytest.mark.parametrize(("name", "values"), SETTINGS)
def test_gains_are_those_of_python(opened, name, values):
    rounded = {key: float(np.float32(value)) for key, value in values.items()}
    for (mean, std), gains in zip(INPUTS, opened.run(GAINS, name, values, INPUTS), strict=True):
        for kind, gain in gains.items():
            exact = activations.gain(activations.create(name, **rounded), kind, mean, std)
            assert gain == pytest.approx(exact, rel=1e-6), (kind, mean, std)
