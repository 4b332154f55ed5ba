"""Keys that swaps leave in a state_dict: a model without the swap refuses the weights, others take them."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel

from lit_gelu import surgery
from lit_gelu.surgery.swap import is_mark

X = torch.linspace(-2, 2, 12).reshape(3, 4)
KEY = (
    "1.swapped_to_silu__needs_ActivationSwap_or_lit_gelu_callbacks_load_from_checkpoint"
    "_or_lit_gelu_surgery_without_marks"
)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def swapped(spec="silu"):
    model = net()
    surgery.swap(model, {"1": spec})
    return model


def test_a_model_without_the_swap_refuses_the_weights_and_is_told_who_takes_them():
    with pytest.raises(RuntimeError, match=f'Unexpected key.*"{KEY}"'):
        net().load_state_dict(swapped().state_dict())
    assert net().load_state_dict(swapped().state_dict(), strict=False).unexpected_keys == [KEY]


def test_a_model_with_another_swap_refuses_them_too():
    with pytest.raises(RuntimeError):
        swapped("gelu").load_state_dict(swapped().state_dict())
    with pytest.raises(RuntimeError):
        swapped("leaky_relu(negative_slope=-0.2)").load_state_dict(
            swapped("leaky_relu(negative_slope=0.2)").state_dict()
        )


def test_a_model_with_the_same_swap_takes_them_and_weights_from_before_a_swap():
    for weights in (swapped().state_dict(), net().state_dict()):
        result = swapped().load_state_dict(weights)
        assert not result.missing_keys
        assert not result.unexpected_keys
    for one, other in (("swish(beta=2)", "swish(beta=2.0)"), ("relu6(inplace=True)", "relu6")):
        swapped(one).load_state_dict(swapped(other).state_dict())


@pytest.mark.parametrize("spec", ["silu", "prelu"])
def test_plain_weights_go_into_a_model_that_was_built_without_the_package(spec):
    built = nn.Sequential(nn.Linear(4, 4), {"silu": nn.SiLU(), "prelu": nn.PReLU()}[spec], nn.Linear(4, 2))
    weights = surgery.without_marks(swapped(spec).state_dict())
    built.load_state_dict(weights, strict=True)
    assert torch.equal(built(X), swapped(spec)(X))


def test_the_state_dict_is_plain_tensors_and_read_as_plain_data():
    stream = io.BytesIO()
    torch.save(swapped().state_dict(), stream)
    stream.seek(0)
    weights = torch.load(stream, weights_only=True)
    assert weights[KEY].numel() == 0
    swapped().load_state_dict(weights)


def test_copies_keep_the_key_and_undo_takes_it_away():
    model = net()
    before = list(model.state_dict())
    report = surgery.swap(model, {"1": "silu"})
    for twin in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert KEY in twin.state_dict()
        twin.load_state_dict(model.state_dict())
    report.undo()
    assert list(model.state_dict()) == before


def test_a_second_swap_leaves_its_own_key_alone():
    model = swapped()
    twin = copy.deepcopy(model[1])
    surgery.swap(model, {"1": "gelu"})
    assert [key for key in model.state_dict() if is_mark(key)] == [KEY.replace("silu", "gelu")]
    surgery.swap(model, {"1": twin})  # a module that has a key already
    assert [key for key in model.state_dict() if is_mark(key)] == [KEY]


def test_calls_and_held_functions_have_it_too():
    class Functional(nn.Module):
        def forward(self, x):
            return nn.functional.gelu(x)

    model = nn.Sequential(Functional(), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
    surgery.swap(model, {"activation:gelu": "silu", "activation:relu": "tanh"}, X[None])
    marks = [key.partition("__needs")[0] for key in model.state_dict() if is_mark(key)]
    assert marks == ["0.gelu_call.swapped_to_silu", "1.activation.swapped_to_tanh"]


def test_those_who_read_a_state_dict_by_their_own_rules_take_it():
    model = swapped()
    averaged = AveragedModel(model, use_buffers=True)
    averaged.update_parameters(model)
    AveragedModel(swapped(), use_buffers=True).load_state_dict(averaged.state_dict())
    compiled = torch.compile(swapped(), backend="eager")
    compiled.load_state_dict({f"_orig_mod.{key}": value for key, value in model.state_dict().items()})
    for options in (StateDictOptions(), StateDictOptions(full_state_dict=True, cpu_offload=True)):
        result = set_model_state_dict(swapped(), get_model_state_dict(model, options=options), options=options)
        assert not result.unexpected_keys
    assert torch.equal(functional_call(model, dict(model.state_dict()), (X,)), model(X))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_exporters_and_torchscript_leave_it_out():
    model = swapped().eval()
    program = torch.export.export(model, (X,))
    assert [key for key in program.state_dict if is_mark(key)] == []
    assert torch.equal(program.module()(X), model(X))
    assert torch.equal(torch.jit.trace(model, X)(X), model(X))
