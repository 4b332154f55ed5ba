"""What is known of the activations, against published constants and brute force."""

import math

import pytest
import torch
from activation_oracles import ELEMENTWISE

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpecError

# Minimum, value there, inflections and largest slope: solved with mpmath at 30 digits from the definitions.
PUBLISHED = {
    "gelu": (-0.7517915246935645, -0.1699712074799037, (-math.sqrt(2), math.sqrt(2)), 1.128904145185155),
    "gelu_tanh": (-0.7524614220710163, -0.1700407505712541, (-1.418504008790828, 1.418504008790828), 1.128993068658772),
    "gelu_sigmoid": (-0.7511542554412889, -0.1636101896, (-1.409728132, 1.409728132), 1.099839320128867),
    "silu": (-1.278464542761074, -0.2784645427610738, (-2.399357280515468, 2.399357280515468), 1.099839320128867),
    "mish": (-1.1924312145155, -0.30884341301725, (-2.25637639636, 1.49057117949), 1.08849816125),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_minimum_inflections_and_slope(name):
    place, value, inflections, slope = PUBLISHED[name]
    info = activations.info(name)
    assert info.minimum == pytest.approx((place, value), abs=2e-10)
    assert info.inflections == pytest.approx(inflections, abs=2e-10)
    assert info.lipschitz == pytest.approx(slope, abs=1e-11)
    assert info.range == (info.minimum[1], math.inf)
    assert not info.monotone
    assert not info.convex
    assert info.smoothness == math.inf


@pytest.mark.parametrize(
    ("spec", "value_range", "monotone", "convex", "lipschitz"),
    [
        ("relu", (0, math.inf), True, True, 1),
        ("relu6", (0, 6), True, False, 1),
        ("relu2", (0, math.inf), True, True, math.inf),
        ("leaky_relu(negative_slope=-0.5)", (0, math.inf), False, True, 1),
        ("leaky_relu(negative_slope=2.0)", (-math.inf, math.inf), True, False, 2),
        ("elu(alpha=0.5)", (-0.5, math.inf), True, True, 1),
        ("elu(alpha=2.0)", (-2, math.inf), True, False, 2),
        ("celu(alpha=2.0)", (-2, math.inf), True, True, 1),
        ("selu", (-1.7580993408473766, math.inf), True, False, 1.7580993408473766),
        ("hard_swish", (-0.375, math.inf), False, False, 1.5),
        ("identity", (-math.inf, math.inf), True, True, 1),
        ("sigmoid", (0, 1), True, False, 0.25),
        ("tanh", (-1, 1), True, False, 1),
        ("softplus", (0, math.inf), True, True, 1),
        ("log_sigmoid", (-math.inf, 0), True, False, 1),
    ],
)
def test_range_monotone_convex_lipschitz(spec, value_range, monotone, convex, lipschitz):
    info = activations.info(spec)
    assert info.range == pytest.approx(value_range, abs=1e-12)
    assert (info.monotone, info.convex) == (monotone, convex)
    assert info.lipschitz == pytest.approx(lipschitz, rel=1e-12)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_kinks_are_where_the_module_turns(name):
    """Every stated kink is one, and there is no other: one-sided slopes differ nowhere else (float64)."""
    module = activations.create(name).eval().double()
    step = 2.0**-30
    places = torch.arange(-12, 12.01, 0.25, dtype=torch.float64)
    with torch.no_grad():
        jumps = (module(places + step) + module(places - step) - 2 * module(places)) / step
    kinks = [(x, round(jump, 4)) for x, jump in zip(places.tolist(), jumps.tolist(), strict=True) if abs(jump) > 1e-3]
    assert kinks == [(x, pytest.approx(jump, abs=1e-4)) for x, jump in activations.info(name).kinks]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_entry_states_its_facts(name):
    info = activations.info(name)
    assert info.formula
    assert info.asymptotes is not None
    assert info.smoothness is not None
    assert (info.smoothness == 0) == bool(info.kinks)
    assert info.learnable == any(p.requires_grad for p in activations.create(name).parameters())


def test_info_of_something_never_registered_is_refused():
    with pytest.raises(ActivationSpecError):
        activations.info(torch.nn.Softsign())


def test_softplus_that_jumps_at_its_threshold_is_not_called_smooth():
    assert activations.info("softplus(threshold=1.0)").smoothness is None
    for spec in ("softplus", "softplus(beta=3.0)", "softplus(threshold=30.0)"):
        assert activations.info(spec).smoothness == math.inf


def test_info_of_a_user_s_function_is_computed():
    registry = ActivationRegistry()
    registry.register("bump")(lambda x: x * torch.exp(-x * x))
    info = registry.info("bump")
    assert info.minimum == pytest.approx((-math.sqrt(0.5), -math.sqrt(0.5) * math.exp(-0.5)), abs=1e-12)
    assert info.inflections == pytest.approx((-math.sqrt(1.5), 0.0, math.sqrt(1.5)), abs=1e-9)
    assert info.smoothness is None
