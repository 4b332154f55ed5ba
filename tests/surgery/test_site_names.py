"""Names of calls stay apart and right: of a shared module's callers, in a larger model, in records and pickles."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
import unusual_nets as nets
from torch import nn

from lit_gelu import surgery
from lit_gelu.surgery.activation_record import record_activations

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def swapped(model):
    surgery.swap(model, {"first.act#0": "tanh", "first.act#1": "silu", "first.act#2": "mish"}, X)
    return model


def test_calls_of_a_shared_module_by_several_modules_keep_names_of_their_own():
    model = swapped(nets.Sharing())
    torch.testing.assert_close(model(X), model.expected(X, torch.tanh, F.silu, F.mish))
    sites = {site.call: (site.name, str(site.spec)) for site in surgery.find_sites(model) if site.call}
    assert sites == {
        "first.act#0": ("first.act_call_0", "tanh"),
        "first.act#1": ("second.act_call_1", "silu"),
        "first.act#2": ("third.act_call_2", "mish"),
    }
    assert record_activations(model) == {
        "first.act": "relu", "first.act#0": "tanh", "first.act#1": "silu", "first.act#2": "mish",
    }  # fmt: skip


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_within_a_larger_model_the_names_follow(twin):
    model = nn.Sequential(nn.Identity(), twin(swapped(nets.Sharing())))
    calls = {site.call for site in surgery.find_sites(model) if site.call}
    assert calls == {"1.first.act#0", "1.first.act#1", "1.first.act#2"}
    surgery.swap(model, {"1.first.act#1": "softplus"})
    torch.testing.assert_close(model(X), model[1].expected(X, torch.tanh, F.softplus, F.mish))


def test_calls_of_a_childs_activation_from_without_and_within():
    model = nets.Reaching()
    surgery.swap(model, {"inner.act#0": "tanh", "inner.act#1": "silu"}, X)
    torch.testing.assert_close(model(X), F.silu(model.inner.linear(X.tanh())))


def test_two_methods_that_call_one_activation():
    model = nets.TwoMethods()
    report = surgery.swap(model, {"act#1": "silu"}, X)
    torch.testing.assert_close(model(X), F.silu(model.linear(X.relu())))
    report.undo()
    assert type(model) is nets.TwoMethods


def test_two_calls_of_one_global_module_are_told_apart():
    model = nets.TwoOfLibrary()
    assert [site.name for site in surgery.find_sites(model, X)] == [":gelu#0", ":gelu#1"]
    surgery.swap(model, {":gelu#1": "silu"}, X)
    report = surgery.coverage(model, X)
    assert report.counts() == {"gelu": 1, "silu": 1}
    torch.testing.assert_close(model(X), F.silu(torch.sin(F.gelu(X))))


@pytest.mark.parametrize("compiled", [False, True])
def test_names_in_a_model_of_fabric_are_those_of_the_model(compiled):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    wrapped = fabric.setup(torch.compile(model, backend="eager") if compiled else model)
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    assert [site.names for site in surgery.find_sites(wrapped, x)] == [("1",)]
    report = surgery.swap(wrapped, {"1": "silu"}, x)
    assert torch.equal(wrapped(x), nn.functional.silu(model[0](x)))
    assert surgery.coverage(wrapped, x).counts() == {"silu": 1}
    report.undo()
    assert torch.equal(wrapped(x), model[0](x).relu())
