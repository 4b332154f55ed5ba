"""Which members may share their code, and that the others are refused with a remedy."""

import functools
import random
import weakref

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.utils import parametrizations

from lit_gelu.replicas.errors import MembersDifferError
from lit_gelu.replicas.membership.alike import activation_paths, check_alike
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.tasks import MNISTClassifier, TweetTagger


class Net(LightningModule):
    """A user's module, with an attribute that its step reads."""

    def __init__(self, lr=0.1, margin=1.0, width=4, activation=None, keep=0.5, bias=True):
        super().__init__()
        self.lr, self.margin = lr, margin
        self.scale = functools.partial(torch.mul, other=margin)
        self.net = nn.Sequential(nn.Linear(3, width, bias=bias), activation or nn.ReLU(), nn.Dropout(1 - keep))


def test_activations_dropout_and_what_optimizers_read_may_differ():
    found = check_alike([Net(), Net(lr=1.0, activation=nn.SiLU(), keep=0.9)])
    assert {path: names for path, names in found.items() if names} == {"": {"lr"}, "net.2": {"p"}}
    assert activation_paths([Net(), Net(activation=nn.PReLU())]) == ["net.1"]


def test_the_tasks_may_differ_in_their_hyper_parameters():
    tasks = [
        TweetTagger("elu", keep=0.5, learning_rate=1e-4),
        TweetTagger("prelu", keep=1.0),
        TweetTagger(lambda x: x.clamp(min=0), fused_optimizer=False),
    ]
    assert check_alike(tasks)[""] == {"activation_spec", "learning_rate"}
    assert activation_paths(tasks) == ["hidden.0.activation", "hidden.1.activation"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Net(margin=2.0), r"'margin'.*1\.0 and 2\.0.*differ=\('margin',\)"),
        (Net(activation=nn.Tanhshrink()), r"'net\.1'.*ReLU and Tanhshrink"),
        (Net(bias=False), r"'net\.0'.*'bias', 'weight'.*'weight'"),
        (TweetTagger(), "at the top"),
    ],
)
def test_what_else_differs_is_refused(other, said):
    with pytest.raises(MembersDifferError, match=said):
        check_alike([Net(), Net(), other])


def test_a_user_may_name_what_no_step_reads():
    assert check_alike([Net(), Net(margin=2.0)], differ=("margin", "scale"))[""] == {"margin", "scale"}


def test_the_mode_of_a_layer_is_compared():
    frozen = MNISTClassifier(hidden_layers=1)
    frozen.hidden.eval()
    with pytest.raises(MembersDifferError, match="training"):
        check_alike([MNISTClassifier(hidden_layers=1), frozen])


def test_sizes_that_differ_are_refused():
    with pytest.raises(MembersDifferError, match="out_features"):
        check_alike([Net(), Net(width=5)])
    with pytest.raises(MembersDifferError, match=r"'net\.0\.weight'.*\[4, 3\].*\[5, 3\]"):
        Stacks([Net(), Net(width=5)])


class Sharing(LightningModule):
    """Two layers that may share their weights, or may be one layer."""

    def __init__(self, ties=False, is_one=False, act=None):
        super().__init__()
        self.first, self.act = nn.Linear(3, 3), act or nn.ReLU()
        self.second = self.first if is_one else nn.Linear(3, 3)
        self.net = nn.Sequential(self.act, nn.Linear(3, 3), self.act)
        if ties:
            self.second.weight = self.first.weight


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"ties": True}, {}, r"'first\.weight', 'second\.weight'"),
        ({}, {"ties": True}, r"'first\.weight', 'second\.weight'"),
        ({"ties": True}, {"is_one": True}, "'second'.*|second.*nothing"),
    ],
)
def test_members_that_share_other_parts_are_refused(one, other, said):
    with pytest.raises(MembersDifferError, match=said):
        check_alike([Sharing(**one), Sharing(**one), Sharing(**other)])


@pytest.mark.parametrize("cell", [{}, {"ties": True}, {"is_one": True}])
def test_members_that_share_the_same_parts_are_alike(cell):
    check_alike([Sharing(**cell), Sharing(**cell), Sharing(act=nn.PReLU(), **cell)])


class Holding(LightningModule):
    """A module with anything in attributes that are no registered modules."""

    def __init__(self, make=lambda module: module):
        super().__init__()
        self.net, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.held = [make(self)]


def test_modules_in_lists_are_compared_with_all_that_they_hold():
    def refused(one, other):
        with pytest.raises(MembersDifferError, match="'held'"):
            check_alike([Holding(one), Holding(other)])

    refused(lambda _: nn.CrossEntropyLoss(), lambda _: nn.CrossEntropyLoss(label_smoothing=0.1))
    refused(lambda _: nn.Linear(2, 2), lambda _: nn.Linear(2, 2))
    refused(lambda module: module.net, lambda module: module.other)
    refused(lambda _: {"a": random.Random(0)}, lambda _: {"a": random.Random(1)})
    check_alike([Holding(lambda module: module.net), Holding(lambda module: module.net)])
    check_alike([Holding(lambda _: nn.CrossEntropyLoss(label_smoothing=0.1)) for _ in range(2)])


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, lambda tensor: [weakref.ref(tensor)]])
def test_a_members_own_tensor_in_a_list_is_named(wrap):
    found = check_alike([Holding(lambda module: wrap(module.net.weight)) for _ in range(2)])
    assert found[""] == {"held"}
    with pytest.raises(MembersDifferError, match="'held'"):
        check_alike([
            Holding(lambda module: wrap(module.net.weight)),
            Holding(lambda module: wrap(module.other.weight)),
        ])


def doubled(module, inputs, outputs):
    return 2 * outputs


class Hooked(LightningModule):
    """A module with hooks on its layer, which torch numbers through a whole process."""

    def __init__(self, *hooks, after=None, **options):
        super().__init__()
        self.net = nn.Linear(3, 3)
        for hook in hooks:
            self.net.register_forward_hook(hook, **options)
        if after is not None:
            self.net.register_full_backward_hook(after)


def test_hooks_are_compared_in_their_order():
    def other(module, inputs, outputs):
        return 3 * outputs

    assert not any(check_alike([Hooked(doubled, other), Hooked(doubled, other)]).values())
    assert not any(check_alike([Hooked(doubled, always_call=True), Hooked(doubled, always_call=True)]).values())
    for one in (Hooked(other, doubled), Hooked(doubled), Hooked(doubled, other, always_call=True)):
        with pytest.raises(MembersDifferError, match="_forward_hooks"):
            check_alike([Hooked(doubled, other), one])
    assert check_alike([Hooked(after=doubled), Hooked(after=doubled)])["net"] == {"_backward_hooks"}


def test_an_attribute_may_be_called_as_torch_calls_hooks():
    one, other = Hooked(), Hooked()
    one._own_hooks, other._own_hooks = ["a"], ["a"]
    assert not any(check_alike([one, other]).values())
    other._own_hooks = ["b"]
    with pytest.raises(MembersDifferError, match="_own_hooks"):
        check_alike([one, other])


class Parametrized(LightningModule):
    def __init__(self, make=parametrizations.weight_norm, name="weight"):
        super().__init__()
        self.net = make(nn.Linear(3, 3), name)


def test_parametrized_layers_are_compared_by_what_they_are_made_of():
    check_alike([Parametrized(), Parametrized()])
    others = [Parametrized(parametrizations.spectral_norm), Parametrized(lambda layer, _: layer)]
    for other in others:
        with pytest.raises(MembersDifferError, match="'net"):
            check_alike([Parametrized(), other])


def test_functions_that_hold_a_member_are_named():
    found = check_alike([Holding(lambda module: lambda inputs: module.net(inputs)) for _ in range(2)])
    assert found[""] == {"held"}
    found = check_alike([Holding(lambda module: functools.partial(module.net)) for _ in range(2)])
    assert found[""] == set()
