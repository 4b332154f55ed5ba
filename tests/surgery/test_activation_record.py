"""What a checkpoint says of a model's activations, and how they are put back."""

import pytest
import torch
import unusual_nets as nets
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.errors import CheckpointError, SpecError
from lit_gelu.surgery.activation_record import describe_differences, record_activations, restore_activations

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("cls", [nets.Sharing, nets.Reaching, nets.TwoMethods, nets.OfLibrary])
def test_a_record_of_every_call_puts_the_same_activations_back(cls):
    torch.manual_seed(0)
    model = cls()
    calls = [call.name for site in surgery.find_sites(model, X) for call in site.calls]
    assert len(set(calls)) == len(calls) > 1
    targets = dict(zip(calls, ["tanh", "silu", "mish"], strict=False))
    surgery.swap(model, targets, X)
    record = record_activations(model)
    assert {name: record[name] for name in calls} == targets
    torch.manual_seed(0)
    other = cls()
    assert len(describe_differences(record, record_activations(other))) >= len(calls)
    restore_activations(other, record, input_sample=X)
    assert torch.equal(other(X), model(X))
    assert record_activations(other) == record
    with pytest.raises(CheckpointError):
        restore_activations(cls(), record)  # calls are found with a sample alone


def test_a_function_that_was_never_registered_is_refused_or_named():
    model = nn.Sequential(activations.create(torch.sinh))
    with pytest.raises(SpecError):
        record_activations(model)
    record = record_activations(model, name_opaque=True)
    assert record["0"].startswith("opaque:")
    assert record["0"].endswith(".sinh")
    other = nn.Sequential(activations.create(torch.asinh))
    assert len(describe_differences(record, record_activations(other, name_opaque=True))) == 1
    with pytest.raises(CheckpointError):
        restore_activations(other, record)
