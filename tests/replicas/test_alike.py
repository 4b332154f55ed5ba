"""Which members may share their code, and that the others are refused with a remedy."""

import functools

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lit_gelu.replicas.alike import activation_paths, check_alike, same
from lit_gelu.replicas.errors import MembersDifferError
from lit_gelu.replicas.stacks import Stacks
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


@pytest.mark.parametrize("one", [1, 1.0, float("nan"), "a", (1, [2.0]), {"a": 1}, torch.ones(2), print, nn.ReLU()])
def test_what_is_the_same(one):
    import copy

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
