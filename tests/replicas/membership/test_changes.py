"""What a group notices of changes in its members."""

from collections import Counter, deque

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from lit_gelu.replicas import NotReplicableError
from lit_gelu.replicas.membership.changes import SeenModules, names_of


class Member(LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"scale": 1.0})
        self.beta, self.seen, self.last = 1.0, [], torch.zeros(3)
        self.window, self.counts = deque([1.0], maxlen=2), Counter()
        self.net = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Dropout(0.5))
        self.accuracy = MulticlassAccuracy(3)


CHANGES = {
    "beta": lambda member: setattr(member, "beta", 0.5),
    "new": lambda member: setattr(member, "new", 0.5),
    "last": lambda member: setattr(member, "last", torch.zeros(3)),
    "seen": lambda member: member.seen.append(1),
    "window": lambda member: member.window.append(2.0),
    "counts": lambda member: member.counts.update("a"),
    "_hparams": lambda member: member.hparams.update(scale=2.0),
    "p": lambda member: setattr(member.net[2], "p", 0.1),
    "training": lambda member: member.net[2].eval(),
    "_modules": lambda member: member.net.__setitem__(1, nn.ReLU()),
    "_forward_hooks": lambda member: member.net[0].register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed_and_then_known(name):
    members = [Member(), Member()]
    watch = SeenModules(members)
    assert not watch.has_changed()
    CHANGES[name](members[1])
    assert watch.has_changed()
    assert {changed for _, changed, _ in watch.changed()} == {name}
    assert names_of(watch.changed()) == {name} - {"training", "_modules", "_forward_hooks"}
    watch.check_parameters()
    watch.look()
    assert not watch.has_changed()


def test_a_tensor_that_is_changed_in_place_is_another():
    member = Member()
    watch = SeenModules([member])
    member.last.add_(1)
    assert watch.has_changed()
    assert [(path, name) for path, name, _ in watch.changed()] == [("", "last")]
    watch.look()
    assert not watch.has_changed()


def test_what_a_pass_leaves_is_no_change():
    member = Member()
    watch = SeenModules([member])
    member.accuracy(torch.eye(3), torch.arange(3))
    with torch.no_grad():
        member.net[0].weight.add_(1)
    assert not watch.has_changed()
    member.trainer = None
    member._metric_attributes = {}
    assert watch.changed() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda member: member.net[0].requires_grad_(False), "requires_grad of members' parameters was changed"),
        (lambda member: setattr(member.net[0], "bias", nn.Parameter(torch.zeros(3))), "have other parameters"),
        (lambda member: member.net.append(nn.PReLU()), "have other parameters"),
        (lambda member: member.net[0].weight.register_hook(lambda gradient: gradient), "'net.0.weight' of Member has"),
        (lambda member: member.net[0].bias.register_post_accumulate_grad_hook(lambda _: None), "'net.0.bias' of Memb"),
    ],
)
def test_parameters_are_those_of_the_stacks(change, said):
    member = Member()
    watch = SeenModules([member])
    change(member)
    assert watch.has_changed()
    with pytest.raises(NotReplicableError, match=rf"{said}.*alone"):
        watch.check_parameters()
