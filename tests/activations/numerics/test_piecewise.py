"""The pieces of an activation are the activation: without a gap, and with its values."""

import math
from itertools import pairwise

import pytest
import torch

from lit_gelu import activations
from lit_gelu.activations.numerics.piecewise import PiecewiseMoments

OPTIONS = {
    "leaky_relu": {"negative_slope": 0.3},
    "prelu": {"init": 0.125},
    "elu": {"alpha": 0.3},
    "celu": {"alpha": 2.0},
}
PIECES = {
    entry.name: entry.moments.pieces
    for entry in activations.registry.entries()
    if isinstance(entry.moments, PiecewiseMoments)
}
CASES = [(name, {}) for name in PIECES] + list(OPTIONS.items())


def test_there_are_as_many_as_there_were():
    assert len(PIECES) == 11


@pytest.mark.parametrize(("name", "options"), CASES)
def test_pieces_are_the_activation(name, options):
    pieces = PIECES[name](**options) if callable(PIECES[name]) else PIECES[name]
    assert (pieces[0].low, pieces[-1].high) == (-math.inf, math.inf)
    assert all(a.high == b.low for a, b in pairwise(pieces))
    x = torch.linspace(-8, 8, 321, dtype=torch.float64)
    with torch.no_grad():
        wanted = activations.create(name, **options).double()(x)
    found = [next(piece.at(point) for piece in pieces if piece.low < point <= piece.high) for point in x.tolist()]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), wanted, rtol=1e-12, atol=1e-12)
