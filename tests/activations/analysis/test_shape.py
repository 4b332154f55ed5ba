"""The straight lines that activations approach: computed against stated, and against lines known in closed form."""

import math
import re

import pytest
import torch
from activation_oracles import ELEMENTWISE

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry

WORDS = {"sqrt": math.sqrt, "pi": math.pi, "weight": 0.25}


def _line(text, side):
    """Slope and offset of an asymptote stated as text, None if it is no straight line."""
    python = re.sub(r"(\d|weight) (?=[a-z(])", r"\1 * ", text.replace("^", "**"))
    one, two, three = (eval(python, {"__builtins__": {}}, {**WORDS, "x": side * k}) for k in (1.0, 2.0, 3.0))
    if abs(three - 2 * two + one) > 1e-12:
        return None
    slope = side * (two - one)
    return slope, one - side * slope


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_stated_asymptote_is_the_computed_one(name):
    info = activations.info(name)
    computed = (info.left_asymptote, info.right_asymptote)
    for text, side, line in zip(info.asymptotes, (-1, 1), computed, strict=True):
        assert line == (None if _line(text, side) is None else pytest.approx(_line(text, side), abs=1e-10))


@pytest.mark.parametrize(
    ("function", "left", "right"),
    [
        (lambda x: x * (0.5 + torch.atan(x) / math.pi), (0, -1 / math.pi), (1, -1 / math.pi)),
        (lambda x: (torch.sqrt(x * x + 1) - 1) / 2 + x, (0.5, -0.5), (1.5, -0.5)),
        (lambda x: x / (1 + x.abs()), (0, -1), (0, 1)),
        (lambda x: torch.relu(x - 1000.0), (0, 0), (1, -1000)),
        (lambda x: torch.log(1 + torch.exp(x)), (0, 0), (1, 0)),  # overflows at 709
        (lambda x: 1e-9 * x * torch.sigmoid(x), (0, 0), (1e-9, 0)),
        (lambda x: torch.sign(x) * torch.log1p(x.abs()), None, None),
        (lambda x: x - torch.log1p(x.abs()), None, None),
        (lambda x: x**3, None, None),
        (lambda x: x + torch.sin(x) ** 2, None, None),
        (torch.exp, (0, 0), None),
    ],
)
def test_lines_known_in_closed_form(function, left, right):
    registry = ActivationRegistry()
    registry.register("mine")(lambda x: function(x))
    info = registry.info("mine")
    for asymptote, line in ((info.left_asymptote, left), (info.right_asymptote, right)):
        assert asymptote == (None if line is None else pytest.approx(line, abs=2e-8))
    unbounded = (left is None or left[0] != 0, right is None or right[0] != 0)
    assert (math.inf in map(abs, info.range)) == any(unbounded)


@pytest.mark.parametrize(
    "function", [torch.log, torch.sqrt, torch.asin, torch.acosh, lambda x: torch.log(x + 2), lambda x: x * math.nan]
)
def test_nothing_is_known_of_what_is_no_function_of_the_whole_line(function):
    registry = ActivationRegistry()
    registry.register("mine")(lambda x: function(x))
    info = registry.info("mine")
    facts = (info.range, info.monotone, info.convex, info.lipschitz, info.derivative_at_zero, info.minimum, info.gains)
    assert {*facts, info.left_asymptote, info.right_asymptote} == {None}
    assert info.inflections == ()
