"""What `plot` draws, against closed forms and mpmath; what it refuses."""

import math
import sys

import mpmath
import numpy as np
import pytest
from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError
from lit_gelu.extras import MissingExtraError


def curve(figure, panel, name):
    (line,) = [line for line in figure.axes[panel].get_lines() if line.get_label() == name]
    return line.get_xdata(), line.get_ydata()


def gelu(x):
    return x * mpmath.ncdf(x)


def test_the_lines_are_the_function_and_its_derivatives():
    figure = activations.plot("gelu", "relu", interval=(-3, 2))
    for order in (0, 1, 2):
        x, y = curve(figure, order, "gelu")
        assert (x[0], x[-1]) == (-3, 2)
        places = range(0, len(x), 200)
        expected = [float(mpmath.diff(gelu, mpmath.mpf(x[place]), order)) for place in places]
        np.testing.assert_allclose(y[list(places)], expected, rtol=1e-9, atol=1e-12)
    x, y = curve(figure, 0, "relu")
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_modules_of_one_spec_are_drawn_each():
    slopes = (0.25, 0.9)
    modules = [nn.PReLU(), nn.PReLU()]
    for module, slope in zip(modules, slopes, strict=True):
        nn.init.constant_(module.weight, slope)
    lines = [line for line in activations.plot(*modules).axes[0].get_lines() if line.get_label() == "prelu"]
    assert [line.get_ydata()[0] / line.get_xdata()[0] for line in lines] == pytest.approx(slopes, rel=1e-6)


def test_pyplot_is_left_alone():
    before = "matplotlib.pyplot" in sys.modules
    activations.plot("gelu")
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_what_cannot_be_drawn():
    cases = [([], {}), (["gelu"] * 11, {}), (["geglu"], {}), (["gelu"], {"interval": (1, 1)})]
    cases += [
        (["gelu"], {"interval": (0, math.inf)}),
        (["gelu"], {"derivatives": [3]}),
        (["gelu"], {"derivatives": []}),
    ]
    for specs, options in cases:
        with pytest.raises(ActivationArgumentError):
            activations.plot(*specs, **options)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError):
        activations.plot("gelu")
