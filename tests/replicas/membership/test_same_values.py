"""Which attributes would make the same code compute the same."""

import collections
import copy
import functools
import itertools
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu.replicas.membership.same_values import Places, closes_over, holds_tensor, same


class Refusing:
    """What says neither yes nor no when it is asked whether it is equal."""

    def __init__(self, answer):
        self.answer = answer

    def __eq__(self, other):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    __hash__ = None


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def drawn(generator):
    """Return a generator that has drawn a number."""
    generator.random()
    return generator


EQUAL = [
    np.arange(3),
    np.array([1.0, np.nan]),
    np.array([{"a": [1]}, None]),
    np.float32("nan"),
    random.Random(3),
    np.random.default_rng(3),
    np.random.RandomState(3),
    np.random.PCG64(3),
    torch.Generator().manual_seed(3),
    Slotted([1, 2]),
    itertools.count(3),
    collections.deque([1, 2]),
    nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))),
]
DIFFERENT = [
    np.arange(3), np.arange(3.0), np.arange(3) + 1, np.array([1.0, np.nan]), np.array([1.0, 2.0]),
    random.Random(0), random.Random(1), drawn(random.Random(0)), random.SystemRandom(),
    np.random.default_rng(0), np.random.default_rng(1), drawn(np.random.default_rng(0)), np.random.RandomState(0),
    np.random.RandomState(1), np.random.PCG64(0), np.random.PCG64(1), np.random.MT19937(0),
    torch.Generator().manual_seed(0), torch.Generator().manual_seed(1), Slotted(1), Slotted(2), itertools.count(1),
    itertools.count(2), nn.ReLU(), nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), nn.Dropout(0.1),
    nn.Sequential(nn.Dropout(0.2)), nn.Sequential(nn.Dropout(0.3)), nn.Sequential(nn.ReLU()), nn.BatchNorm1d(2),
    nn.BatchNorm1d(2).eval(), nn.Linear(2, 2), nn.Linear(2, 2),
]  # fmt: skip


@pytest.mark.parametrize(
    "one", [1, 1.0, float("nan"), "a", (1, [2.0]), {"a": 1}, torch.ones(2), print, nn.ReLU(), *EQUAL]
)
def test_what_is_the_same(one):
    assert same(one, copy.deepcopy(one))


def test_what_is_not_the_same():
    values = [
        1,
        1.0,
        True,
        "1",
        (1,),
        [1],
        {"a": 1},
        {"a": 2},
        torch.ones(1),
        torch.ones(2),
        torch.zeros(2),
        print,
        None,
    ]
    values += [functools.partial(print, 1), functools.partial(print, 2), Held(1), Held(2), object()]
    values += [lambda: 1, lambda: 2, closed_over(1), closed_over(2), Held(1).value_of, Held(2).value_of]
    values += DIFFERENT
    for i, one in enumerate(values):
        assert all(same(one, other) == (i == j) for j, other in enumerate(values)), one
    assert same(closed_over(1), closed_over(1))
    assert same(Held(1).value_of, Held(1).value_of)


class Held:
    def __init__(self, value):
        self.value = value

    def value_of(self):
        return self.value


def closed_over(value):
    return lambda: value


@pytest.mark.parametrize("answer", [ValueError("of arrays"), np.array([True, False]), np.array([True]), "yes", None])
def test_what_gives_no_answer_is_another(answer):
    assert not same(Refusing(answer), Refusing(answer))
    assert same(Refusing(True), Refusing(True))
    assert same(Refusing(np.True_), Refusing(np.True_))


def test_what_members_hold_themselves_is_compared_by_where_it_is():
    one, other = (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    places = Places(one), Places(other)
    assert same([one[0], one], [other[0], other], places)
    assert same(one[1].forward, other[1].forward, places)
    assert not same(one[0], other[1], places)
    assert not same(one[0], nn.Linear(2, 2), places)
    assert not same(nn.Sequential(one[0]), nn.Sequential(other[1]), places)
    assert same(one[0].weight, other[0].weight, places)
    assert same([weakref.ref(one[0].weight)], [weakref.ref(other[0].weight)], places)
    assert not same(one[0].weight, other[1].weight, places)
    assert not same(one[0].weight, other[0].weight)
    assert not same(one[0], other[0])


def test_tensors_of_a_member_in_attributes():
    net = nn.Sequential(nn.Linear(2, 2))
    places, weight = Places(net), net[0].weight
    for value in (weight, [weight], {"a": (weakref.ref(weight),)}, closed_over(weight)):
        assert holds_tensor(value, places)
    for value in (net, [torch.ones(2)], closed_over(net), 1, None):
        assert not holds_tensor(value, places)


def test_what_functions_have_from_around_them():
    net = nn.Sequential(nn.Linear(2, 2))
    places, weight = Places(net), net[0].weight
    others = nn.Linear(2, 2)
    assert closes_over(lambda: net, places)
    assert closes_over([{"a": lambda: weight}], places)
    assert closes_over(lambda part=net[0]: part, places)
    assert closes_over(functools.partial(lambda x: net(x)), places)
    assert closes_over(closed_over(net.forward), places)
    assert closes_over(closed_over([closed_over(net)]), places)
    assert not closes_over(lambda: others, places)
    assert not closes_over(net.forward, places)
    assert not closes_over(functools.partial(net, 1), places)
