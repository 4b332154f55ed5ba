"""Calls of functions: found in every way in which they are written, swapped, and undone to the last attribute."""

import pickle

import functional_nets as nets
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lit_gelu import surgery
from lit_gelu.errors import SwapError

ALL = nets.REWRITTEN | nets.HELD
SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def state_of(model):
    """Return everything that a swap may touch, in order."""
    return [
        (name, type(module), list(vars(module)), list(module._modules), list(module._parameters))
        for name, module in model.named_modules()
    ], list(model.state_dict())


@pytest.mark.parametrize(("cls", "spec"), ALL.items())
def test_a_call_is_found_with_its_arguments(cls, spec):
    sites = surgery.find_sites(nn.Sequential(cls()), SAMPLE)
    assert {str(site.spec) for site in sites} == {spec}
    kind = "attribute" if cls in nets.HELD else "call"
    assert {site.kind for site in sites} == {kind}
    name = spec.partition("(")[0]
    expected = {"0.activation"} if kind == "attribute" else {f"0:{name}"}
    assert {site.name for site in sites} == ({"0:relu#0", "0:relu#1"} if cls is nets.Nested else expected)
    (call,) = sites[0].calls
    assert call.count == 3 if cls in {nets.Loop, nets.Comprehension} else call.count == 1
    assert call.where.startswith("functional_nets.py:")
    assert call.caller == "0"


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("training", [False, True])
def test_the_new_activation_is_computed_and_undo_is_exact(cls, training):
    model = cls().train(training)
    before, output = state_of(model), model(SAMPLE)
    report = surgery.swap(model, {f"activation:{ALL[cls].partition('(')[0]}": "softplus(beta=2.0)"}, SAMPLE)
    assert torch.equal(model(SAMPLE), model.expected(SAMPLE, lambda x: F.softplus(x, beta=2)))
    assert all(module.training == training for module in model.modules())
    assert not any(site.kind == "call" for site in surgery.find_sites(model, SAMPLE))
    assert surgery.coverage(model, SAMPLE).counts().keys() == {"softplus(beta=2.0)"}
    report.undo()
    assert state_of(model) == before
    assert torch.equal(model(SAMPLE), output)


def test_a_name_without_a_number_means_all_calls_of_that_name():
    model = nn.Sequential(nets.Function(), nets.Nested(), nets.Nested())
    assert [row.name for row in surgery.swap(model, {"*:gelu": "silu", "1:relu": "mish"}, SAMPLE).rows] == [
        "0:gelu",
        "1:relu#0",
        "1:relu#1",
    ]
    assert [row.name for row in surgery.swap(model, {"1:relu": "elu"}).rows] == ["1:relu#0", "1:relu#1"]  # modules now
    assert [row.name for row in surgery.swap(model, {"2:relu#1": "gelu"}, SAMPLE).rows] == ["2:relu#1"]


def test_a_swapped_call_is_still_known_by_its_name_and_numbers_stay():
    model = nets.Nested()
    first = surgery.swap(model, {":relu#0": "silu"}, SAMPLE)
    assert {site.name for site in surgery.find_sites(model, SAMPLE)} == {"relu_call_0", ":relu#1"}
    second = surgery.swap(model, {":relu#1": "mish"}, SAMPLE)
    assert torch.equal(model(SAMPLE), model.second(F.mish(F.silu(model.first(SAMPLE)) - 0.1)))
    third = surgery.swap(model, {":relu#0": "gelu"})  # it is a module now, so no sample is needed
    assert torch.equal(model(SAMPLE), model.second(F.mish(F.gelu(model.first(SAMPLE)) - 0.1)))
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(SAMPLE), model(SAMPLE))
    with pytest.raises(SwapError):
        first.undo()
    for report in (third, second, first):
        report.undo()
    assert type(model) is nets.Nested
    assert [name for name, _ in model.named_children()] == ["first", "second"]


def test_one_call_of_a_reused_module_gets_its_own_activation():
    model = nets.ReusedModule()
    (site,) = surgery.find_sites(model, SAMPLE)
    assert [call.name for call in site.calls] == ["act#0", "act#1"]
    h = model.first(SAMPLE)
    report = surgery.swap(model, {"act#1": "prelu"}, SAMPLE)
    assert torch.equal(model(SAMPLE), F.prelu(model.second(h.relu()), model.act_call_1.weight))
    report.undo()
    surgery.swap(model, {"act#*": "silu"}, SAMPLE)
    assert model.act_call_0 is not model.act_call_1
    assert torch.equal(model(SAMPLE), F.silu(model.second(F.silu(h))))


def test_a_module_and_one_of_its_calls_cannot_both_be_claimed():
    with pytest.raises(SwapError):
        surgery.swap(nets.ReusedModule(), {"act": "silu", "act#0": "gelu"}, SAMPLE)


def test_one_place_of_a_module_shared_within_a_sequential():
    act = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act)
    (site,) = surgery.find_sites(model, SAMPLE)
    assert [call.name for call in site.calls] == ["1#0", "1#1"]
    report = surgery.swap(model, {"1#1": "silu"}, SAMPLE)
    assert model[1] is act
    assert type(model[3]) is nn.SiLU
    assert torch.equal(model(SAMPLE), F.silu(model[2](model[0](SAMPLE).relu())))
    report.undo()
    assert model[3] is act


def test_gates_are_listed_and_swapped_only_if_named():
    class Gated(nn.Module):
        def forward(self, x):
            return torch.tanh(x) * torch.sigmoid(x) * F.hardsigmoid(x) * F.relu(x)

    model = Gated()
    roles = {site.name: site.role for site in surgery.find_sites(model, SAMPLE)}
    assert roles == {":tanh": "gate", ":sigmoid": "gate", ":hard_sigmoid": "gate", ":relu": "activation"}
    assert [row.name for row in surgery.swap(model, {"*": "silu"}, SAMPLE).rows] == [":relu"]
    surgery.swap(model, {":sigmoid": "relu", "activation:tanh": "identity"}, SAMPLE)
    x = SAMPLE
    expected = x * x.relu() * F.hardsigmoid(x) * F.silu(x)
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("cls", nets.REFUSED)
def test_what_cannot_be_done_is_refused_and_nothing_changes(cls):
    model = cls()
    before = state_of(model)
    with pytest.raises(SwapError):
        surgery.swap(model, {"*": "silu"}, SAMPLE)
    assert state_of(model) == before
