"""A function that a module holds and calls with more than its input, which a module in its place would not take."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
import unusual_nets as nets
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.errors import SwapError

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
CALLS = {
    nets.Positional: "leaky_relu(negative_slope=0.2)",
    nets.ByKeyword: "leaky_relu(negative_slope=0.2)",
    nets.InAnotherMethod: "leaky_relu(negative_slope=0.2)",
    nets.InPlace: "relu(inplace=True)",
}


@pytest.mark.parametrize("cls", CALLS)
def test_the_calls_give_the_input_alone_after_a_swap(cls):
    model = nn.Sequential(cls())
    (site,) = surgery.find_sites(model, X)
    assert (site.name, str(site.spec)) == ("0.act", CALLS[cls])
    output, attributes = model(X), list(vars(model[0]))
    report = surgery.swap(model, {"0.act": "swish(beta=2.0)"}, X)
    expected = model[0].expected(X, activations.create("swish(beta=2.0)"))
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(X), expected)
    report.undo()
    assert torch.equal(model(X), output)
    assert type(model[0]) is cls
    assert list(vars(model[0])) == attributes


def test_what_cannot_be_written_anew_is_refused_and_nothing_changes():
    model = nets.ByVariable()
    with pytest.raises(SwapError):
        surgery.swap(model, {"*": "silu"}, X)
    assert model.act is F.leaky_relu
    assert type(model) is nets.ByVariable


def test_what_is_handed_on_and_called_with_its_input_alone_works():
    model = nets.HandedOn()
    surgery.swap(model, {"*": "silu"}, X)
    torch.testing.assert_close(model(X), model.expected(X, F.silu))


def test_calls_from_the_module_above_are_calls_of_the_attribute():
    """And no sites of their own, which would get parameters that nothing uses."""
    torch.manual_seed(0)
    model = nets.HeldByChild()
    (site,) = surgery.find_sites(model, X)
    assert (site.name, [call.caller for call in site.calls]) == ("child.act", ["", ""])
    report = surgery.swap(model, {"*": "prelu"}, X)
    assert [name for name, _ in model.named_parameters() if "act" in name] == ["child.act.weight"]
    assert surgery.coverage(model, X).counts() == {"prelu": 2}
    report.undo()
    surgery.swap(model, {"child.act#0": "silu"}, X)
    torch.testing.assert_close(model(X), F.relu(F.silu(X) - 1))
    with pytest.raises(SwapError):
        surgery.swap(nets.HeldByChildWithArguments(), {"*": "silu"}, X)


def test_torch_s_own_layers_leave_no_doubt():
    for layer in (nn.TransformerEncoderLayer(8, 2, 16), nn.TransformerDecoderLayer(8, 2, 16)):
        assert surgery.swap(layer, {"*": "silu"}).notes == ()
