"""The largest differences of two activations, against published numbers and mpmath at 50 digits."""

import functools
import json
import math

import mpmath
import pytest
import torch
from activation_oracles import CASES
from taylor import DIGITS
from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError, ActivationRegistry, compare

# Solved with mpmath from the definitions: size, places, and how many digits of the size are given.
PUBLISHED = [
    ("gelu", "gelu_tanh", "value", 4.732355e-4, (-2.698941, 2.698941), 1e-6),
    ("gelu", "gelu_tanh", "slope", 8.68e-4, None, 1e-2),
    ("gelu", "gelu_tanh", "curvature", 1.86e-3, None, 1e-2),
    ("gelu", "gelu_sigmoid", "value", 0.02033487, (-2.270398, 2.270398), 1e-6),
    ("gelu", "gelu_sigmoid", "slope", 0.0291, None, 1e-2),
    ("gelu", "gelu_sigmoid", "curvature", 0.0653, None, 1e-2),
    ("silu", "gelu", "value", 0.19300199, (-1.96546896, 1.96546896), 1e-7),
    ("swish", "mish", "value", 0.18435114, (1.82080839,), 1e-7),
    ("silu", "hard_swish", "value", 0.142278, (-3.0, 3.0), 1e-5),
]


_compared = functools.cache(compare)


@pytest.mark.parametrize(("a", "b", "which", "size", "places", "digits"), PUBLISHED)
def test_published_differences(a, b, which, size, places, digits):
    difference = getattr(_compared(a, b), which)
    assert difference.largest == pytest.approx(size, rel=digits)
    assert places is None or difference.places == pytest.approx(places, abs=5e-7)
    assert difference.stretches == ()


def _case(name, **parameters):
    return next(case for case in CASES if case.name == name and dict(case.parameters) == parameters)


SMOOTH = [
    ("gelu", _case("gelu"), "gelu_tanh", _case("gelu", approximate="tanh")),
    ("gelu", _case("gelu"), "gelu_sigmoid", _case("gelu", approximate="sigmoid")),
    ("silu", _case("silu"), "mish", _case("mish")),
]


@pytest.mark.parametrize(("a", "first", "b", "second"), SMOOTH)
def test_sizes_and_places_against_mpmath(a, first, b, second):
    comparison = _compared(a, b)

    def difference(x, order):
        return first.exact(x)[order] - second.exact(x)[order]

    coarse = [mpmath.mpf(k) / 16 for k in range(-96, 97)]
    with mpmath.workdps(DIGITS):
        for order, row in enumerate((comparison.value, comparison.slope, comparison.curvature)):
            assert max(abs(difference(x, order)) for x in coarse) <= row.largest * (1 + 1e-12)
            for place in row.places:
                near = (place - 1e-4, place + 1e-4)
                exact = mpmath.findroot(lambda x, k=order: difference(x, k + 1), near, solver="anderson", tol=1e-40)
                assert abs(place - exact) < (1e-11 if order < 2 else 1e-9)
                assert row.largest == pytest.approx(float(abs(difference(exact, order))), rel=3e-12)


@pytest.mark.parametrize("beta", [1e-2, 1.0, 1e3, 1e7])
def test_swish_approaches_relu_as_its_slope_grows(beta):
    """x s(beta x) - max(x, 0) is even, and lowest at the minimum of SiLU over beta."""
    place = float(1 + mpmath.lambertw(mpmath.exp(-1))) / beta
    comparison = compare(f"swish(beta={beta})", "relu", (-2 * place, 3 * place))
    assert comparison.value.places == pytest.approx((-place, place), rel=1e-10)
    assert comparison.value.largest == pytest.approx((place * beta - 1) / beta, rel=1e-12)
    assert comparison.slope.largest == pytest.approx(0.5, rel=1e-12)
    assert comparison.slope.places == (0.0,)


def test_a_jump_is_looked_at_from_both_sides():
    """At 3, f' of Hard Swish is 3/2 on the left and 1 on the right; SiLU's lies below both."""
    slope = _compared("silu", "hard_swish").slope
    sigmoid = 1 / (1 + math.exp(-3))
    assert slope.largest == pytest.approx(1.5 - sigmoid * (1 + 3 * (1 - sigmoid)), rel=1e-13)
    assert slope.places == (-3.0, 3.0)


def test_where_the_difference_is_level_the_stretch_is_named():
    comparison = compare("relu", "leaky_relu(negative_slope=0.25)", (-2, 3))
    assert (comparison.value.largest, comparison.value.places) == (0.5, (-2.0,))
    assert (comparison.slope.largest, comparison.slope.stretches) == (0.75 / 3, ((-2.0, 0.0),))
    assert comparison.slope.places == ()
    assert "all of [-2, 0]" in str(comparison)


def test_an_activation_is_no_distance_from_itself():
    comparison = compare("gelu", "zero_identity_map")
    for row in (comparison.value, comparison.slope, comparison.curvature):
        assert (row.largest, row.places, row.stretches) == (0.0, (), ((-12.0, 12.0),))


def test_an_unknown_kink_of_a_users_function_is_found():
    registry = ActivationRegistry()
    registry.register("hinge")(lambda x: torch.where(x > 0.1234567, x - 0.1234567, 0.0 * x))
    value = compare("hinge", "relu", (-1, 1), registry=registry).value
    assert value.largest == pytest.approx(0.1234567, rel=1e-13)
    assert value.stretches == ((pytest.approx(0.1234567, abs=1e-12), 1.0),)
    assert compare("hinge", "relu", (-1, 1), registry=registry).slope.largest == 1.0


def test_functions_and_modules_never_registered_are_compared():
    prelu = nn.PReLU(init=0.25)
    nn.init.constant_(prelu.weight, 0.5)  # which counts as it is now
    assert compare(prelu, "relu", (-1, 1)).value.largest == 0.5
    comparison = compare(torch.nn.functional.softsign, nn.Tanh(), (-30, 30))
    x = torch.linspace(0, 4, 400_001, dtype=torch.float64)
    expected = (x.tanh() - x / (1 + x)).max().item()
    assert comparison.value.largest == pytest.approx(expected, abs=1e-10)
    # f'' of softsign jumps from 2 to -2 at 0, which nobody stated.
    assert comparison.curvature.largest == pytest.approx(2.0, rel=1e-14)
    assert comparison.curvature.places == (0.0,)


def test_what_cannot_be_compared_is_refused():
    registry, different = ActivationRegistry(), nn.PReLU(2)
    registry.register("stepped")(lambda x: torch.where(x.abs() < 0.25, x * math.inf, x))
    with torch.no_grad():
        different.weight[0] = 0.5
    cases = [("geglu", (-1, 1)), ("gelu", (1, 1)), ("gelu", (-math.inf, 1)), (torch.nn.functional.glu, (-1, 1))]
    for activation, interval in [*cases, ("stepped", (-1, 1)), (different, (-1, 1))]:
        with pytest.raises(ActivationArgumentError):
            compare(activation, "relu", interval, registry=registry)


def test_it_is_plain_data_and_prints():
    comparison = activations.compare("gelu", "gelu_tanh", interval=(-5, 5))
    data = json.loads(json.dumps(comparison.to_dict()))
    assert data["a"] == "gelu"
    assert data["b"] == "gelu(approximate='tanh')"
    assert data["interval"] == [-5.0, 5.0]
    assert data["value"]["places"] == list(comparison.value.places)
    assert "0.0004732355 at -2.698941, 2.698941" in str(comparison)
