"""Gains against mpmath, published tables and torch's own function."""

import math

import pytest
import torch
from gaussian_oracle import case_of, exact_moments

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError, ActivationRegistry, gain
from lit_gelu.activations.errors import NoGaussianMomentsError
from lit_gelu.activations.gaussian import gains

# Forward, variance and backward gains at N(0, 1), computed with 30 digits and printed with seven.
PUBLISHED = {
    "gelu": (1.533530, 1.700926, 1.481114),
    "gelu_tanh": (1.533581, 1.700917, 1.481168),
    "gelu_sigmoid": (1.539459, 1.709359, 1.491459),
    "silu": (1.676532, 1.787187, 1.623320),
    "swish(beta=1.5)": (1.567704, 1.723596, 1.517235),
    "swish(beta=2.0)": (1.508461, 1.695761, 1.464229),
    "mish": (1.486848, 1.592025, 1.444755),
    "elu": (1.245198, 1.270843, 1.223429),
    "elu(alpha=0.5)": (1.365595, 1.477657, 1.358283),
    "selu": (1.0, 1.0, 0.966026),
    "hard_swish": (1.736657, 1.813871, 1.670076),
    "relu": (1.414214, 1.712859, 1.414214),
    "leaky_relu(negative_slope=0.2)": (1.386750, 1.546460, 1.386750),
    "softplus": (1.041867, 1.919126, 1.846229),
    "tanh": (1.592537, 1.592537, 1.467414),
}


def _elementwise_specs():
    specs = dict.fromkeys(activations.resolve(name) for name in activations.list_activations())
    return [str(spec) for spec in specs if activations.registry.entry(spec.name).facts_for(spec.arguments).elementwise]


@pytest.mark.parametrize("spec", PUBLISHED)
def test_published_gains(spec):
    found = (gain(spec), gain(spec, "variance"), gain(spec, "backward"))
    assert found == pytest.approx(PUBLISHED[spec], abs=6e-7)


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
    with pytest.raises(ActivationArgumentError):
        gain("gelu", "fan_in")
    with pytest.raises(NoGaussianMomentsError):
        gain(torch.zeros_like)
    with pytest.raises(NoGaussianMomentsError):
        gain(torch.ones_like, "variance")
