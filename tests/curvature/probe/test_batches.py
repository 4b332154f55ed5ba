"""A part of a batch, whatever the batch is made of, and what of it a model is run on."""

import dataclasses
from collections import UserDict
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from lit_gelu.curvature.probe.batches import clone_batch, count_examples, forward_sample, part_size, take_examples
from lit_gelu.errors import ArgumentError


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
    for piece, source in zip(pieces(part), pieces(batch), strict=True):
        assert len(piece) == 4
        assert len(source) == 6  # the batch itself is not changed
        assert torch.equal(piece, source[:4]) if isinstance(piece, torch.Tensor) else piece == source[:4]


def test_a_batch_of_unknown_kind_is_used_whole_or_refused():
    batch = object()
    assert part_size(batch, None) is None
    with pytest.raises(ArgumentError):
        take_examples(batch, 2)


def shapes(batch):
    return [tuple(tensor.shape) for tensor in batch]


IMAGES = [torch.zeros(3, 8, 8 + number % 3) for number in range(16)]
SEQUENCES = [torch.zeros(3 + number % 4, 6) for number in range(16)]


@pytest.mark.parametrize("examples", [IMAGES, tuple(IMAGES), [torch.zeros(3, 8, 8)] * 16, SEQUENCES, SEQUENCES[:3]])
def test_tensors_without_a_common_number_of_examples_are_one_each(examples):
    assert count_examples(examples) == len(examples)
    assert shapes(take_examples(examples, 2)) == shapes(examples[:2])
    targets = [{"boxes": torch.zeros(number % 5, 4), "id": number} for number in range(len(examples))]
    images, cut = take_examples((examples, targets), 2)
    assert shapes(images) == shapes(examples[:2])
    assert cut == targets[:2]


@pytest.mark.parametrize(
    "fields",
    [
        [torch.zeros(16, 96, 7), torch.zeros(16, 24, 7)],  # a forecast
        [torch.zeros(16, 3, 8, 8), torch.zeros(16, 3, 32, 32)],  # small and large
        [torch.zeros(16, 6), torch.zeros(16, 6)],
        [torch.zeros(64, width) for width in (8, 2, 1, 1, 1, 3)],  # a rollout
        (torch.zeros(16, dtype=torch.int64), torch.zeros(80, dtype=torch.int64), torch.zeros(16, dtype=torch.int64)),
        [torch.zeros(8, 3, 4, 4), torch.zeros(8, 3, 4, 4)],
    ],
)
def test_fields_of_a_batch_are_no_examples(fields):
    assert count_examples(fields) == len(fields[0])
    part = take_examples(fields, 2)
    assert len(part) == len(fields)
    assert [len(tensor) for tensor in part] == [2 if len(t) == len(fields[0]) else len(t) for t in fields]
    assert part_size(fields, 1 / 8) == len(fields[0]) // 8 or len(fields[0]) < 16


@pytest.mark.parametrize("batch", [IMAGES[:2], IMAGES[:4], [torch.zeros(4, 6), torch.zeros(4, 2)]])
def test_few_tensors_that_could_be_either_are_used_whole(batch):
    assert part_size(batch, 1 / 8) == count_examples(batch)


def test_packed_sequences_are_counted_and_not_cut():
    packed = pack_sequence([torch.zeros(length, 2) for length in (5, 4, 2)])
    assert count_examples((packed, torch.zeros(3))) == 3
    assert take_examples(packed, 3) is packed
    for batch in (packed, (torch.zeros(3), packed)):
        with pytest.raises(ArgumentError):
            take_examples(batch, 2)


def test_a_clone_shares_nothing_with_its_batch():
    batch = {"x": [X.clone()], "frozen": Frozen(X.clone(), NAMES), "packed": pack_sequence([X.clone()])}
    batch["own"] = SimpleNamespace(x=X.clone())
    clone = clone_batch(batch)
    for each in (batch["x"][0], batch["frozen"].x, batch["packed"].data, batch["own"].x):
        each.zero_()
    assert [type(part) for part in clone.values()] == [type(part) for part in batch.values()]
    for each in (clone["x"][0], clone["frozen"].x, clone["packed"].data, clone["own"].x):
        assert torch.equal(each, X)


LEFT, RIGHT, TARGET = torch.arange(12.0).view(4, 3), torch.ones(4, 2), torch.arange(4)


class Taking(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize(
    ("forward", "batch", "expected"),
    [
        (lambda xs: torch.cat(xs, 1), ([LEFT, RIGHT], TARGET), ([LEFT[:2], RIGHT[:2]],)),
        (lambda xs: torch.cat(xs, 1), ([LEFT], TARGET), ([LEFT[:2]],)),
        (lambda x: x + 1, ([LEFT], TARGET), (LEFT[:2],)),
        (lambda a, b: torch.cat([a, b], 1), ([LEFT, RIGHT], TARGET), (LEFT[:2], RIGHT[:2])),
        (lambda d: d["x"] + 1, ({"x": LEFT}, TARGET), ({"x": LEFT[:2]},)),
        (lambda x: x + 1, ({"x": LEFT}, TARGET), {"x": LEFT[:2]}),
        (lambda batch: batch["x"], {"x": LEFT, "y": TARGET}, ({"x": LEFT[:2], "y": TARGET[:2]},)),
        (lambda **named: named["x"], {"x": LEFT, "y": TARGET}, {"x": LEFT[:2], "y": TARGET[:2]}),
        (lambda x: x + 1, {"x": LEFT, "y": TARGET}, {"x": LEFT[:2]}),
        (lambda x: x + 1, (LEFT, TARGET), LEFT[:2]),
    ],
)
def test_inputs_are_the_arguments_that_forward_runs_on(forward, batch, expected):
    inputs = forward_sample(Taking(forward), batch)
    assert type(inputs) is type(expected)
    torch.testing.assert_close(inputs, expected, rtol=0, atol=0)


@pytest.mark.parametrize("batch", [(), [[]], ("text", TARGET), ([pack_sequence([LEFT])], TARGET), None])
def test_a_batch_without_inputs_gives_none(batch):
    model = Taking(lambda x: x + 1)
    assert forward_sample(model, batch) is None
