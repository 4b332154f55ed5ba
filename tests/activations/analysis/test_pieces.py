"""Cutting an activation into pieces that can be inverted."""

import itertools
import math

import pytest
import torch

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.analysis.pieces import MonotonePieces


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
