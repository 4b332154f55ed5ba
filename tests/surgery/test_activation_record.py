"""What a checkpoint says of a model's gates, which no registry has: a fingerprint that neither fails nor forgets."""

import pytest
import torch
import unusual_nets as nets
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.activations.errors import OpaqueActivationError
from lit_gelu.errors import CheckpointError
from lit_gelu.surgery.activation_record import describe_differences, record_activations, restore_activations

SOFTMAX = "opaque:torch.nn.modules.activation.Softmax(dim=-1)"
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def test_softmax_is_recorded_with_its_dimension():
    assert record_activations(nets.Attention()) == {"softmax": SOFTMAX, "act": "relu"}


def test_another_dimension_is_a_difference():
    first, second = record_activations(nets.Attention(-1)), record_activations(nets.Attention(0))
    (difference,) = describe_differences(first, second)
    assert difference == f"'softmax': {SOFTMAX} in the checkpoint, {SOFTMAX.replace('-1', '0')} in the model"
    with pytest.raises(CheckpointError):
        restore_activations(nets.Attention(0), first)


def test_a_softmax_that_went_is_a_difference_and_is_put_back():
    model = nets.Attention()
    surgery.swap(model, {"softmax": "relu", ":softmax": "sigmoid"}, X)
    record = record_activations(model)
    assert record == {"softmax": "relu", "act": "relu", ":softmax": "sigmoid"}
    assert len(describe_differences(record, record_activations(nets.Attention()))) == 2
    other = nets.Attention()
    restore_activations(other, record, input_sample=X)
    assert torch.equal(other(X), model(X))
    with pytest.raises(CheckpointError):
        restore_activations(other, {**record, "softmax": SOFTMAX}, input_sample=X)


def test_a_record_of_an_earlier_version_has_no_softmax_and_fits():
    earlier = {"act": "relu"}
    assert describe_differences(earlier, record_activations(nets.Attention())) == []
    model = nets.Attention()
    restore_activations(model, {"act": "gelu"})
    assert type(model.act) is nn.GELU


def test_a_function_that_was_never_registered_is_refused_or_named():
    model = nn.Sequential(activations.create(torch.sinh))
    with pytest.raises(OpaqueActivationError):
        record_activations(model)
    record = record_activations(model, name_opaque=True)
    assert record["0"].startswith("opaque:")
    assert record["0"].endswith(".sinh")
    other = nn.Sequential(activations.create(torch.asinh))
    assert len(describe_differences(record, record_activations(other, name_opaque=True))) == 1
