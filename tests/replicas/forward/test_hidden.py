"""Hyper-parameters and attributes in which members differ: no way to read them gives the first member's value."""

import copy

import pytest
from lightning.pytorch import LightningModule
from torch import nn

from lit_gelu.replicas import NotReplicableError
from lit_gelu.replicas.forward.hidden import hide, hide_hyper_parameters


class Net(LightningModule):
    def __init__(self, smooth=0.0, width=3, **others):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(3, 3)


def template_of(*members):
    template = copy.deepcopy(members[0])
    hide_hyper_parameters(template, members)
    return template


READINGS = {
    "attribute": lambda hparams: hparams.smooth,
    "item": lambda hparams: hparams["smooth"],
    "get": lambda hparams: hparams.get("smooth", 7.0),
    "contains": lambda hparams: "smooth" in hparams,
    "pop": lambda hparams: hparams.pop("smooth"),
    "setdefault": lambda hparams: hparams.setdefault("smooth", 7.0),
    "iteration": list,
    "keys": lambda hparams: list(hparams.keys()),
    "values": lambda hparams: list(hparams.values()),
    "items": lambda hparams: dict(hparams.items()),
    "copy": lambda hparams: hparams.copy(),
    "shallow copy": copy.copy,
    "dictionary": dict,
    "union": lambda hparams: {"smooth": 7.0} | hparams,
    "named arguments": lambda hparams: dict(**hparams),
    "equality": lambda hparams: hparams == {},
    "text": str,
}


@pytest.mark.parametrize("way", READINGS)
@pytest.mark.parametrize("attribute", ["hparams", "hparams_initial"])
def test_hyper_parameters_that_differ_are_not_read(way, attribute):
    for members in ([Net(0.1), Net(0.1), Net(0.2)], [Net(), Net(smooth=None)]):
        with pytest.raises(NotReplicableError, match=r"'smooth'.*loop"):
            READINGS[way](getattr(template_of(*members), attribute))


def test_a_hyper_parameter_that_only_some_members_have_is_not_read():
    with pytest.raises(NotReplicableError, match="'margin'"):
        template_of(Net(), Net(margin=1.0)).hparams.get("margin", 0.0)


def test_hyper_parameters_that_are_equal_are_read():
    hparams = template_of(Net(0.1), Net(0.2)).hparams
    assert (hparams.width, hparams["width"], hparams.get("width"), "width" in hparams) == (3, 3, 3, True)
    assert (hparams.get("nothing", 7), "nothing" in hparams, bool(hparams)) == (7, False, True)
    for read in (lambda: hparams["nothing"], lambda: hparams.nothing):
        with pytest.raises((KeyError, AttributeError), match="nothing"):
            read()
    alike = template_of(Net(0.1), Net(0.1))
    assert dict(alike.hparams) == {"smooth": 0.1, "width": 3}


def test_a_hidden_attribute_is_not_read():
    net = Net()
    net.margin = 1.0
    hide(net, {"margin"})
    assert isinstance(net, Net)
    with pytest.raises(NotReplicableError, match=r"'margin'.*loop"):
        _ = net.margin
