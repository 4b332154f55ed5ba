"""Every change of a model's modules is noticed, and nothing else."""

import pytest
import torch
from torch import nn

from lit_gelu.curvature.activation.call_sites import ModuleTree


class AllAlike(nn.Module):
    """Equal to every other of its class, as dataclasses may be; it is another module nevertheless."""

    __hash__ = nn.Module.__hash__

    def __eq__(self, other):
        return isinstance(other, AllAlike)


def model():
    shared = nn.GELU()
    inner = nn.Sequential(nn.Linear(2, 2), AllAlike(), shared)
    return nn.Sequential(inner, nn.ReLU(), shared, nn.Linear(2, 2))


def replace(net):
    net[0][1] = AllAlike()


def point_elsewhere(net):
    net[2] = net[1]


def exchange(net):
    net[1], net[2] = net[2], net[1]


CHANGES = {
    "replaced by an equal one": replace,
    "a leaf got a child": lambda net: net[3].add_module("child", nn.Identity()),
    "removed": lambda net: net.pop(3),
    "appended": lambda net: net.append(nn.Identity()),
    "set to None": lambda net: setattr(net[0], "2", None),
    "one shared module instead of another": point_elsewhere,
    "exchanged": exchange,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(change):
    net = model()
    tree = ModuleTree(net)
    assert tree.is_unchanged()
    change(net)
    assert not tree.is_unchanged()


def test_training_and_parameters_are_no_change():
    net = model()
    tree = ModuleTree(net)
    net.eval().requires_grad_(False)
    net[3].weight = nn.Parameter(torch.zeros(2, 2))
    net.register_buffer("seen", torch.zeros(1))
    assert tree.is_unchanged()
