"""A part of a batch, whatever the batch is made of."""

import dataclasses
from collections import UserDict
from types import MappingProxyType
from typing import NamedTuple

import pytest
import torch

from lit_gelu.curvature.loss.errors import LossCurvatureError
from lit_gelu.curvature.loss.probe_batch import check_part, count_examples, part_of, take_examples


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    names: list[str]
    scale: float = 2.0


X, Y = torch.arange(12.0).view(6, 2), torch.arange(6)
NAMES = list("abcdef")


@pytest.mark.parametrize(
    ("batch", "pieces"),
    [
        (X, lambda part: [part]),
        ([X, Y], list),
        ((X, Y), list),
        (Pair(X, Y), lambda part: [part.x, part.y]),
        ({"x": X, "y": {"y": Y}}, lambda part: [part["x"], part["y"]["y"]]),
        (UserDict(x=X, y=Y), lambda part: [part["x"], part["y"]]),
        (Frozen(X, NAMES), lambda part: [part.x, part.names]),
        (MappingProxyType({"x": X}), lambda part: [part["x"]]),
    ],
)
def test_every_kind_of_batch_is_cut_alike(batch, pieces):
    part = take_examples(batch, 4)
    assert count_examples(batch) == 6
    assert count_examples(part) == 4
    assert type(part) is type(batch) or isinstance(batch, MappingProxyType)
    for piece, whole in zip(pieces(part), pieces(batch), strict=True):
        assert len(piece) == 4
        assert len(whole) == 6  # the batch itself is not changed
        assert torch.equal(piece, whole[:4]) if isinstance(piece, torch.Tensor) else piece == whole[:4]


def test_what_has_no_example_of_each_is_kept_whole():
    weights, scale = torch.ones(3), torch.tensor(2.0)
    part = take_examples((X, weights, scale, NAMES, ["other", "length"], None), 2)
    assert part[0].shape == (2, 2)
    assert part[1] is weights
    assert part[2] is scale
    assert part[3] == ["a", "b"]
    assert part[4:] == (["other", "length"], None)


def test_a_list_of_two_tensors_is_not_two_examples():
    x, y = take_examples([torch.ones(2, 3), torch.ones(2)], 1)
    assert (x.shape, y.shape) == ((1, 3), (1,))


@pytest.mark.parametrize(
    ("fraction", "samples", "expected"),
    [(1 / 8, None, 2), (0.5, None, 3), (0.51, None, 4), (1.0, None, 6), (None, 2, 2), (None, 100, 6), (None, None, 6)],
)
def test_parts_are_rounded_up_to_whole_examples(fraction, samples, expected):
    assert count_examples(part_of((X, Y), fraction, samples)) == expected


def test_a_batch_of_unknown_kind_is_used_whole_or_refused():
    batch = object()
    assert part_of(batch, None, None) is batch
    with pytest.raises(LossCurvatureError, match="type object"):
        part_of(batch, 0.5, None)


@pytest.mark.parametrize(
    ("fraction", "samples"), [(0.0, None), (1.5, None), (float("nan"), None), (None, 0), (None, True), (0.5, 3)]
)
def test_refusals(fraction, samples):
    with pytest.raises(LossCurvatureError, match=r"fraction|samples"):
        check_part(fraction, samples)
