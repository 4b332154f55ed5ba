"""GELU in its three forms; constants solved with mpmath at 30 digits."""

import importlib
import math

import mpmath
import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of
from torch.nn import functional as F

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional import gelu, gelu_derivative

FORMS = ("none", "tanh", "sigmoid")


class TestGelu(ActivationContract):
    cases = cases_of("gelu")


@pytest.mark.parametrize(
    ("approximate", "lowest", "minimum", "inflection", "steepest", "tolerance"),
    [
        ("none", -0.7517915246935645, -0.1699712074799037, math.sqrt(2), 1.128904145185155, 1e-14),
        ("tanh", -0.7524614220710163, -0.1700407505712541, 1.418504008790828, 1.128993068658772, 1e-14),
        ("sigmoid", -0.7511542554, -0.1636101896, 1.409728132, 1.099839320, 1e-9),
    ],
)
def test_extrema_and_inflections(approximate, lowest, minimum, inflection, steepest, tolerance):
    points = torch.tensor([lowest, inflection, -inflection], dtype=torch.float64)
    value = gelu(points, approximate)
    first, second = gelu_derivative(points, 1, approximate), gelu_derivative(points, 2, approximate)
    assert value[0].item() == pytest.approx(minimum, abs=tolerance)
    assert first[0].item() == pytest.approx(0.0, abs=tolerance)
    assert first[1].item() == pytest.approx(steepest, abs=tolerance)
    assert second[1:].abs().max().item() <= tolerance


@pytest.mark.parametrize("approximate", FORMS)
def test_both_sides_mirror_each_other(approximate):
    x = torch.linspace(0, 40, 4001, dtype=torch.float64)
    torch.testing.assert_close(gelu(x, approximate) - gelu(-x, approximate), x, rtol=1e-15, atol=1e-15)
    both = gelu_derivative(x, 1, approximate) + gelu_derivative(-x, 1, approximate)
    torch.testing.assert_close(both, torch.ones_like(x), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("approximate", "where", "differences"),
    [("tanh", 2.698941, (4.732355e-4, 8.68e-4, 1.86e-3)), ("sigmoid", 2.270398, (0.02033487, 0.0291, 0.0653))],
)
def test_how_far_the_approximations_are(approximate, where, differences):
    x = torch.linspace(-12, 12, 240001, dtype=torch.float64)
    apart = (gelu(x, approximate) - gelu(x)).abs()
    assert abs(x[apart.argmax()].item()) == pytest.approx(where, abs=2e-4)
    assert apart.max().item() == pytest.approx(differences[0], rel=1e-6)
    for order in (1, 2):
        apart = (gelu_derivative(x, order, approximate) - gelu_derivative(x, order)).abs()
        assert apart.max().item() == pytest.approx(differences[order], rel=5e-3)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_agrees_with_torch_where_torch_is_accurate(approximate):
    x = torch.linspace(-3, 30, 1000)
    torch.testing.assert_close(gelu(x, approximate), F.gelu(x, approximate=approximate), rtol=1e-5, atol=1e-6)


def test_by_default_the_exact_form_and_its_first_derivative():
    """The slope at 0 is one half, where f is 0 and f'' 2 / sqrt(2 pi)."""
    x = torch.tensor([0.0, 0.5], dtype=torch.float64)
    assert gelu_derivative(x)[0] == 0.5
    assert torch.equal(gelu_derivative(x), gelu_derivative(x, 1, "none"))
    assert torch.equal(gelu(x), gelu(x, "none"))


def test_refuses_another_form():
    for function in (gelu, gelu_derivative):
        with pytest.raises(ActivationArgumentError):
            function(torch.zeros(2), approximate="erf")


def test_the_tanh_forms_slope_and_products_come_with_the_rounding_error_that_they_have():
    """Together they have twice as many digits: without the error, f'' would lose some at its own extremum."""
    module = importlib.import_module("lit_gelu.activations.families.gelu")
    x = torch.linspace(-9, 9, 181, dtype=torch.float64)
    for cubic in (module.TANH_CUBIC, 6.0 * module.TANH_CUBIC):
        slope = module._slope(x, cubic)
        first = module._times(x, slope)
        curved = module._product(first, slope)
        with mpmath.workdps(50):
            for i, point in enumerate(map(mpmath.mpf, x.tolist())):
                exact = mpmath.mpf(module.TANH_SLOPE) + mpmath.mpf(cubic) * point**2
                for (value, error), wanted in ((slope, exact), (first, point * exact), (curved, point * exact**2)):
                    found = mpmath.mpf(value[i].item()) + mpmath.mpf(error[i].item())
                    assert abs(found - wanted) <= mpmath.mpf(2) ** -100 * abs(wanted)


def test_the_tanh_forms_slope_is_corrected_for_the_errors_of_its_parts():
    """What f' lacks, to first order in the errors, by mpmath; the errors are made large enough to be seen."""
    module = importlib.import_module("lit_gelu.activations.families.gelu")
    u, u_error, first, first_error = 0.75, 1e-12, 1.5, 3e-12
    parts = (
        [torch.tensor(part, dtype=torch.float64) for part in pair] for pair in ((u, u_error), (first, first_error))
    )
    found = module._slope_correction(*parts).item()
    with mpmath.workdps(50):
        u, u_error, first, first_error = map(mpmath.mpf, (u, u_error, first, first_error))
        density = mpmath.diff(mpmath.sigmoid, u)
        whole = mpmath.sigmoid(u + u_error) + (first + first_error) * mpmath.diff(mpmath.sigmoid, u + u_error)
        wanted = (whole - mpmath.sigmoid(u) - first * density) / density
    assert found == pytest.approx(float(wanted), rel=1e-9, abs=0)
