"""Where activations lose information, against published collisions and closed forms."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError, ActivationRegistry
from lit_gelu.activations.analysis.information import (
    FlatStretchError,
    MonotonePieces,
    PreimageCount,
    colliding_pair,
    flat_stretches,
    mean_derivative,
    preimage_counts,
    preimages,
    quantised_entropy,
)

MONOTONE = ("leaky_relu", "elu", "selu", "softplus", "tanh", "sigmoid", "identity", "cauchy_linear")


@pytest.mark.parametrize(
    ("name", "x", "other"),
    [
        ("silu", -2.0, -0.73618791),
        ("silu", -1.0, -1.59691841),
        ("gelu", -0.5, -1.04929313),
        ("gelu", -2.0, -0.09877197),
        ("hard_swish", -2.0, -1.0),  # symmetric about its minimum
        ("hard_mish", -0.25, -1.75),
        ("leaky_relu(negative_slope=-0.5)", 1.0, -2.0),
    ],
)
def test_published_collisions(name, x, other):
    found = colliding_pair(name, x)
    assert found == pytest.approx(other, abs=5e-9)
    ends = activations.functional.derivative(name, torch.tensor([x, found], dtype=torch.float64), 0)
    assert ends[0].item() == pytest.approx(ends[1].item(), rel=1e-14)
    assert colliding_pair(name, found) == pytest.approx(x, abs=1e-13)


@pytest.mark.parametrize("name", MONOTONE)
def test_what_is_strictly_monotone_has_no_collisions(name):
    assert colliding_pair(name, -0.7) is None
    assert flat_stretches(name) == ()
    assert [row.count for row in preimage_counts(name)] == [1]


@pytest.mark.parametrize("name", ["gelu", "silu", "mish"])
def test_no_collision_on_the_positive_side_and_at_the_turn(name):
    assert colliding_pair(name, 1.0) is None
    assert colliding_pair(name, activations.info(name).minimum[0]) is None


def _gelu_partner(x):
    """The other root of x Phi(x) = y, left of the minimum, at 30 digits."""
    with mpmath.workdps(30):
        y = x * mpmath.ncdf(x)
        return float(
            mpmath.findroot(lambda t: t * mpmath.ncdf(t) - y, (-6, -1), solver="bisect", tol=1e-28, maxsteps=120)
        )


def test_a_collision_beyond_the_interval_is_not_looked_for():
    assert colliding_pair("gelu", -0.01, (-2, 2)) is None
    assert colliding_pair("gelu", -0.01, (-4, 4)) == pytest.approx(_gelu_partner(-0.01), rel=1e-12)
    with pytest.raises(ActivationArgumentError, match="Widen the interval"):
        colliding_pair("gelu", -3.0, (-2, 2))


@pytest.mark.parametrize("x", [-3.0, -1.0, -0.3, -1e-9, 1e-12, 0.5, 7.0])
@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "gelu_tanh"])
def test_preimages_contain_the_point_they_come_from(name, x):
    y = activations.functional.derivative(name, torch.tensor([x], dtype=torch.float64), 0).item()
    found = preimages(name, y, (-40, 40))
    assert len(found) == (2 if x < 0 else 1)
    assert min(abs(other / x - 1) for other in found) < 1e-12


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "swish(beta=3.0)"])
@pytest.mark.parametrize("interval", [(-12, 12), (-5, 3), (0, 4)])
def test_the_preimage_of_0_is_0(name, interval):
    assert preimages(name, 0.0, interval) == (0.0,)


def test_preimages_of_sine_are_all_found():
    registry = ActivationRegistry()
    registry.register("sine")(lambda x: torch.sin(x))
    expected = sorted(k * math.pi + (-1) ** k * math.pi / 6 for k in range(-4, 5))
    assert preimages("sine", 0.5, registry=registry) == pytest.approx([x for x in expected if abs(x) <= 12], abs=1e-14)
    assert max(row.count for row in preimage_counts("sine", registry=registry)) == 8


def test_outside_the_range_there_is_none():
    assert preimages("gelu", -0.17) == ()
    assert preimages("gelu", 13.0) == ()
    assert preimages("tanh", 1.5) == ()


def test_a_value_that_a_jump_passes_over_is_not_taken():
    registry = ActivationRegistry()
    registry.register("jump")(lambda x: torch.where(x > 0, x + 1, x))
    assert preimages("jump", 0.5, registry=registry) == ()
    assert preimages("jump", 1.5, registry=registry) == pytest.approx((0.5,))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (torch.nn.Hardshrink(), [(-12, -0.5, 1), (0.5, 12, 1)]),
        (torch.nn.Threshold(0.3, 0.1), [(0.3, 12, 1)]),
        (lambda x: torch.where(x > 0.3, x + 1, x), [(-12, 0.3, 1), (1.3, 13, 1)]),
        (lambda x: torch.where(x > 0.3, x - 1, x), [(-12, -0.7, 1), (-0.7, 0.3, 2), (0.3, 11, 1)]),
        (lambda x: torch.where(x > 0.3, -x, x), [(-12, -0.3, 2), (-0.3, 0.3, 1)]),
        (torch.round, []),
        (torch.sign, []),
    ],
)
def test_what_a_jump_passes_over_is_not_counted(function, expected):
    rows = preimage_counts(function)
    assert [row.count for row in rows] == [count for *_, count in expected]
    for row, (low, high, _) in zip(rows, expected, strict=True):
        assert (row.low, row.high) == pytest.approx((low, high), rel=1e-12)
        assert len(preimages(function, (row.low + row.high) / 2)) == row.count


def test_a_jump_at_0_may_belong_to_either_side():
    for upwards in (lambda x: torch.where(x >= 0, x + 2, x), lambda x: torch.where(x > 0, x + 2, x)):
        low, high = preimage_counts(upwards, (-3, 3))
        assert (low.low, low.high) == (-3, pytest.approx(0, abs=1e-300))
        assert (high.low, high.high) == (2, 5)
    assert preimages(lambda x: torch.where(x < 0, x, x - 2), -1.0, (-3, 3)) == pytest.approx((-1, 1))
    assert len(preimages(lambda x: x - torch.floor(x), 0.02, (-12, 12))) == 24


def test_a_jump_downwards_has_inputs_on_both_sides():
    assert preimages("softplus(threshold=1.0)", 1.1) == pytest.approx((math.log(math.expm1(1.1)), 1.1), rel=1e-12)
    assert [row.count for row in preimage_counts("softplus(threshold=1.0)")] == [1, 2, 1]


def test_how_often_gelu_takes_its_values():
    low, high = preimage_counts("gelu", (-30, 30))
    minimum = activations.info("gelu").minimum[1]
    assert low == PreimageCount(pytest.approx(minimum, abs=1e-16), pytest.approx(0.0, abs=1e-190), 2)
    assert high == PreimageCount(low.high, 30.0, 1)


def test_two_to_one_on_the_stretch_that_was_said_to_be_bijective():
    """On [-2, 0] GELU is two-to-one exactly for the outputs of [-2, -0.0988]."""
    rows = preimage_counts("gelu", (-2, 0))
    assert [row.count for row in rows] == [2, 1]
    end = activations.functional.gelu(torch.tensor([-2.0], dtype=torch.float64)).item()
    assert rows[0].high == pytest.approx(end, rel=1e-15)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("relu", [(-12.0, 0.0, 0.0)]),
        ("relu6", [(-12.0, 0.0, 0.0), (6.0, 12.0, 6.0)]),
        ("hard_sigmoid", [(-12.0, -3.0, 0.0), (3.0, 12.0, 1.0)]),
        ("hard_swish", [(-12.0, -3.0, 0.0)]),
        ("gelu", []),
    ],
)
def test_flat_stretches(name, expected):
    assert [(stretch.low, stretch.high, stretch.value) for stretch in flat_stretches(name)] == expected


def test_a_flat_stretch_is_said_to_be_one():
    with pytest.raises(FlatStretchError, match=r"Every input in \[-12, 0\] gives 0"):
        preimages("relu", 0.0)
    with pytest.raises(FlatStretchError, match="flat stretch"):
        colliding_pair("relu", -1.0)
    assert preimages("relu", 2.0) == (2.0,)
    assert colliding_pair("relu", 2.0) is None


def test_a_slope_of_next_to_nothing_is_no_flat_stretch():
    assert flat_stretches("leaky_relu(negative_slope=1e-12)") == ()
    assert preimages("leaky_relu(negative_slope=-1e-12)", 1e-12) == pytest.approx((-1.0, 1e-12))


@pytest.mark.parametrize(
    ("name", "expected", "digits"),
    [("gelu", 0.00135, 5e-6), ("silu", 0.0474, 5e-5), ("leaky_relu", 0.01, 1e-15), ("relu", 0.0, 0.0)],
)
def test_mean_derivative_on_the_left(name, expected, digits):
    assert mean_derivative(name, -3, 0) == pytest.approx(expected, abs=digits)


def test_mean_derivative_is_the_mean_of_the_derivative():
    x = torch.linspace(-3, 0, 30_001, dtype=torch.float64)
    mean = torch.trapezoid(activations.functional.derivative("mish", x, 1), x).item() / 3
    assert mean_derivative("mish", -3, 0) == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: mean_derivative("gelu", 1, -1),
        lambda: preimages("gelu", 0.0, (2, 1)),
        lambda: preimage_counts("swiglu"),
        lambda: flat_stretches("gelu", (0, math.inf)),
    ],
)
def test_what_cannot_be_answered_is_refused(ask):
    with pytest.raises(ActivationArgumentError):
        ask()


@pytest.mark.parametrize("name", ["gelu", "silu", "hard_swish", "relu6", "tanh", "hard_mish", "leaky_relu"])
def test_pieces_cover_the_interval_without_overlap(name):
    pieces = MonotonePieces.of(name, (-12, 12), None)
    spans = sorted([*pieces.monotone, *((stretch.low, stretch.high) for stretch in pieces.flat)])
    assert (spans[0][0], spans[-1][1]) == (-12.0, 12.0)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(spans))


@pytest.mark.parametrize("name", ["gelu", "mish", "hard_mish", "xielu"])
def test_every_piece_is_monotone_and_ends_at_the_minimum(name):
    pieces = MonotonePieces.of(name, (-12, 12), None)
    for low, high in pieces.monotone:
        steps = pieces.f(torch.linspace(low, high, 2001, dtype=torch.float64)).diff()
        assert bool((steps >= 0).all()) or bool((steps <= 0).all())
    assert activations.info(name).minimum[0] in {end for piece in pieces.monotone for end in piece}


def test_a_flat_bottom_is_one_piece():
    registry = ActivationRegistry()
    registry.register("trough")(lambda x: torch.relu(x.abs() - math.pi))
    pieces = MonotonePieces.of("trough", (-12, 12), registry)
    (stretch,) = pieces.flat
    assert (stretch.low, stretch.high) == pytest.approx((-math.pi, math.pi), abs=1e-12)
    assert len(pieces.monotone) == 2
    assert pieces.solutions(pieces.monotone[0], 1.0) == pytest.approx([-1 - math.pi])
    assert pieces.solutions(pieces.monotone[0], 100.0) == []


@pytest.mark.parametrize(
    ("name", "step", "distinct"),
    [("silu", 1e-6, 992), ("gelu", 1e-6, 991), ("silu", 1e-3, 279), ("gelu", 1e-3, 171), ("leaky_relu", 1e-3, 21)],
)
def test_a_thousand_points_between_minus_two_and_zero(name, step, distinct):
    """A published experiment counts the distinct rounded outputs of 1000 points."""
    found = quantised_entropy(name, step, (-2, 0), input_step=2 / 999)
    assert (found.distinct_inputs, found.distinct_outputs) == (1000, distinct)
    assert found.input_bits == pytest.approx(math.log2(1000), rel=1e-14)


def test_the_identity_loses_nothing():
    found = quantised_entropy("identity", 2**-6)
    assert found.lost_bits == pytest.approx(0.0, abs=1e-12)
    assert found.distinct_inputs == found.distinct_outputs


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 2.5), (-3.0, 0.2)])
def test_a_fine_grid_gives_the_differential_entropy(mean, std):
    step = 2**-8
    found = quantised_entropy("identity", step, mean=mean, std=std)
    differential = math.log2(std * math.sqrt(2 * math.pi * math.e))
    # Rounding adds step^2 / 12 to the variance.
    assert found.input_bits == pytest.approx(differential + 8 + (step / std) ** 2 / 24 / math.log(2), abs=1e-8)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.5, 0.8)])
def test_relu_loses_what_was_known_of_its_negative_inputs(mean, std):
    step = 2**-6
    k = np.arange(-64 * 20, 64 * 20 + 1)
    normal = stats.norm(mean, std)
    probabilities = np.diff(normal.cdf((np.append(k, k[-1] + 1) - 0.5) * step))
    negative = probabilities[k <= 0]
    lost = negative.sum() * stats.entropy(negative, base=2)
    found = quantised_entropy("relu", step, mean=mean, std=std)
    assert found.lost_bits == pytest.approx(lost, abs=1e-10)
    assert found.input_bits == pytest.approx(stats.entropy(probabilities, base=2), abs=1e-10)


def test_a_saturating_activation_loses_more_when_the_grid_is_coarse():
    fine, coarse = (quantised_entropy("tanh", step, (-6, 6), input_step=2**-10).lost_bits for step in (2**-16, 2**-4))
    assert 0 < fine < coarse


def test_nothing_is_gained():
    for name in ("gelu", "mish", "elu", "sigmoid", "hard_swish"):
        assert quantised_entropy(name, 2**-8).lost_bits >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": 0.0}, "must be positive"),
        ({"step": 0.1, "std": -1.0}, "must be positive"),
        ({"step": 0.1, "mean": math.nan}, "finite"),
        ({"step": 1e-9}, "Choose a larger input_step"),
        ({"step": 0.1, "interval": (1, 0)}, "from left to right"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(ActivationArgumentError, match=message):
        quantised_entropy("gelu", **arguments)
