"""Swapped calls in modules that ``torch.nn.utils.parametrize`` gives a class; the oracle is torch, without a swap."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from lit_gelu import surgery

SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
HOWS = [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]


class Layer(nn.Linear):
    def forward(self, x):
        return F.gelu(torch.tanh(F.linear(x, self.weight, self.bias)))


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def build(how=None):
    torch.manual_seed(0)
    layer = Layer(4, 4)
    return layer.eval() if how is None else how(layer).eval()


def by_hand(layer, gelu, tanh=torch.tanh):
    return gelu(tanh(F.linear(SAMPLE, layer.weight, layer.bias)))


def assert_computes(model, twin, gelu, tanh=torch.tanh):
    torch.testing.assert_close(model(SAMPLE), by_hand(twin, gelu, tanh))


# A weight of two tensors, as of weight_norm, torch can only leave parametrized.
@pytest.mark.parametrize(
    ("how", "leave_parametrized"), [*((how, True) for how in HOWS), *((how, False) for how in HOWS[1:])]
)
def test_torch_removes_a_parametrization_after_a_swap(how, leave_parametrized):
    model, twin = build(how), build(how)
    report = surgery.swap(model, {"*:gelu": "silu"}, SAMPLE)
    for module in (model, twin):
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=leave_parametrized)
    assert isinstance(model.weight, nn.Parameter)
    assert_computes(model, twin, F.silu)
    report.undo()
    assert type(model) is Layer
    assert torch.equal(model(SAMPLE), twin(SAMPLE))
    assert list(model.state_dict()) == list(twin.state_dict())


def test_undo_gives_back_the_very_class():
    model = build(parametrizations.spectral_norm)
    before = type(model)
    surgery.swap(model, {"*:gelu": "silu"}, SAMPLE).undo()
    assert type(model) is before
    assert parametrize.type_before_parametrizations(model) is Layer


@pytest.mark.parametrize("how", [None, parametrizations.weight_norm])
def test_what_is_parametrized_after_a_swap_is_so_after_undo(how):
    model, twin = build(how), build(how)
    report = surgery.swap(model, {"*:gelu": "silu"}, SAMPLE)
    for module in (model, twin):
        parametrize.register_parametrization(module, "bias", Doubled())
    assert_computes(model, twin, F.silu)
    report.undo()
    assert torch.equal(model(SAMPLE), twin(SAMPLE))
    assert parametrize.is_parametrized(model, "bias")
    for module in (model, twin):
        parametrize.remove_parametrizations(module, "bias")
    assert torch.equal(model.bias, twin.bias)
    assert type(model) is (Layer if how is None else type(model))
    assert parametrize.type_before_parametrizations(model) is Layer


def test_a_sibling_keeps_its_parametrization():
    """Copies share the class that torch made; only the one that is swapped has another."""
    model = nn.ModuleList([build(parametrizations.weight_norm)])
    model.append(copy.deepcopy(model[0]))
    surgery.swap(model[0], {"*:gelu": "silu"}, SAMPLE)
    surgery.swap(model[1], {"*:gelu": "silu"}, SAMPLE)
    expected = by_hand(model[1], F.silu)
    parametrize.remove_parametrizations(model[0], "weight")
    assert not parametrize.is_parametrized(model[0])
    assert torch.equal(model[1](SAMPLE), expected)
    parametrize.remove_parametrizations(model[1], "weight")
    torch.testing.assert_close(model[1](SAMPLE), expected)
