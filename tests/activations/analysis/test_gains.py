"""Gains against mpmath, published tables and torch's own function."""

import math

import pytest
import torch
from gaussian_oracle import case_of, exact_moments

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, gain
from lit_gelu.activations.gaussian import gains
from lit_gelu.errors import ArgumentError


def _elementwise_specs():
    specs = dict.fromkeys(activations.resolve(name) for name in activations.list_activations())
    return [str(spec) for spec in specs if activations.registry.entry(spec.name).facts_for(spec.arguments).elementwise]


@pytest.mark.parametrize("name", _elementwise_specs())
def test_gains_of_every_function_against_mpmath(name):
    info = activations.info(name)
    breaks = [*info.inflections, *(place for place, _ in info.kinks)]
    exact = exact_moments(case_of(name), 0.0, 1.0, breaks)
    assert info.gains.forward == pytest.approx(float(exact["value_squared"] ** -0.5), rel=1e-11)
    assert info.gains.variance == pytest.approx(float(exact["variance"] ** -0.5), rel=1e-11)
    assert info.gains.backward == pytest.approx(float(exact["derivative_squared"] ** -0.5), rel=1e-11)


def test_a_mean_counts():
    """Far to the right everything that follows the identity has E f^2 = m^2 + s^2."""
    assert gain("silu", mean=60.0, std=0.5) == pytest.approx(1 / math.sqrt(3600.25), rel=1e-12)
    assert gain("silu", "variance", mean=60.0, std=0.5) == pytest.approx(2.0, rel=1e-11)


def test_info_has_the_gains_and_none_where_there_are_none():
    assert activations.info("elu(alpha=0.5)").gains == gains("elu(alpha=0.5)")
    registry = ActivationRegistry()
    registry.register("zero")(lambda x: 0.0 * x)
    assert registry.info("zero").gains is None
    registry.register("bump")(lambda x: torch.exp(-(x**2)))
    assert registry.info("bump").gains.forward == pytest.approx(5**0.25, rel=1e-12)


def test_refuses_a_kind_that_does_not_exist_and_a_gain_that_does_not():
    with pytest.raises(ArgumentError):
        gain("gelu", "fan_in")
    with pytest.raises(ArgumentError):
        gain(torch.zeros_like)
    with pytest.raises(ArgumentError):
        gain(torch.ones_like, "variance")
