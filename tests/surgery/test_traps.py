"""Every trap that replacing activations is known to have: ours avoids it.

Replacing modules by class falls into it, which `make test-full` shows.
Those that concern optimizers, checkpoints and ranks are in tests/callbacks/test_traps.py.
"""

import contextlib

import functional_nets as nets
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import NewGELUActivation

from lit_gelu import surgery
from lit_gelu.errors import SwapError
from lit_gelu.surgery import by_activation, without_marks

SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
NEW = {
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "prelu": nn.PReLU,
    "glu": nn.GLU,
    "softplus": nn.Softplus,
    "swish(learnable=True, channels='infer')": lambda: nn.PReLU(),
}


def naive(model, old, new, sample=None):
    """Replace modules of a class, as is mostly done."""
    cls = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "prelu": nn.PReLU}[old]
    for name, module in list(model.named_modules()):
        if isinstance(module, cls) and name:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, NEW[new]())


def ours(model, old, new, sample=None):
    return surgery.swap(model, {by_activation(old): new}, sample)


BOTH = pytest.mark.parametrize(
    "replace",
    [
        pytest.param(ours, id="ours"),
        pytest.param(
            naive,
            id="naive",
            marks=[pytest.mark.full, pytest.mark.xfail(strict=True, raises=(AssertionError, pytest.fail.Exception))],
        ),
    ],
)


def build(cls):
    torch.manual_seed(0)
    return cls()


def encoder_layer(**arguments):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **arguments)


@BOTH
def test_the_fused_path_of_an_encoder_layer_goes_on_with_the_old_activation(replace):
    layer, x = encoder_layer(activation=nn.ReLU()), torch.randn(2, 3, 8)
    replace(layer, "relu", "tanh")
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x), layer.train()(x), rtol=1e-5, atol=1e-6)


@BOTH
def test_an_encoder_layer_holds_its_activation_as_a_function(replace):
    layer, x = encoder_layer(activation="relu").train(), torch.randn(2, 3, 8)
    other = encoder_layer(activation=torch.tanh).train()
    replace(layer, "relu", "tanh")
    assert torch.equal(layer(x), other(x))


@BOTH
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_an_encoder_passes_nested_tensors_that_only_the_fused_path_takes(replace):
    encoder = nn.TransformerEncoder(encoder_layer(activation=nn.ReLU()), 2).eval()
    plain = nn.TransformerEncoder(encoder_layer(activation=torch.tanh), 2, enable_nested_tensor=False).eval()
    x, mask = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]])
    replace(encoder, "relu", "tanh")
    with torch.no_grad():
        given, wanted = encoder(x, src_key_padding_mask=mask), plain(x, src_key_padding_mask=mask)
    torch.testing.assert_close(given[~mask], wanted[~mask])


@BOTH
@pytest.mark.parametrize("cls", nets.REWRITTEN | nets.INTERCEPTED | nets.HELD)
def test_calls_of_functions_are_missed(replace, cls):
    model = build(cls)
    old = (nets.REWRITTEN | nets.INTERCEPTED | nets.HELD)[cls].partition("(")[0]
    if replace is naive:
        naive(model, "gelu", "softplus")  # whatever class is asked for, there is no module
    else:
        ours(model, old, "softplus", SAMPLE)
    torch.testing.assert_close(model(SAMPLE), model.expected(SAMPLE, F.softplus))


@BOTH
def test_two_calls_of_one_module_cannot_be_told_apart(replace):
    model = build(nets.ReusedModule)
    expected = F.silu(model.second(F.relu(model.first(SAMPLE))))
    if replace is naive:
        naive(model, "relu", "silu")
    else:
        surgery.swap(model, {"act#1": "silu"}, SAMPLE)
    assert torch.equal(model(SAMPLE), expected)


@BOTH
def test_a_second_name_of_a_module_is_forgotten(replace):
    act = nn.PReLU()
    model = nn.Sequential(act, nn.Linear(4, 4), act)
    replace(model, "prelu", "silu")
    assert type(model[0]) is type(model[2]) is nn.SiLU
    assert model[0] is model[2]


@BOTH
def test_a_shared_activation_falls_apart(replace):
    act = nn.ReLU()
    model = nn.ModuleList([nn.Sequential(act), nn.Sequential(act)])
    replace(model, "relu", "prelu")
    assert model[0][0] is model[1][0]
    weights = model.state_dict()
    without_marks(weights)
    assert list(weights) == ["0.0.weight", "1.0.weight"]
    assert len(list(model.parameters())) == 1


@BOTH
def test_the_model_itself_is_never_replaced(replace):
    model = nn.ReLU()
    replace(model, "relu", "silu")
    assert torch.equal(model(SAMPLE), F.silu(SAMPLE))


@BOTH
def test_hooks_are_lost(replace):
    model, seen = nn.Sequential(nn.ReLU()), []
    handle = model[0].register_forward_hook(lambda module, *_: seen.append(type(module)))
    replace(model, "relu", "silu")
    model(SAMPLE)
    handle.remove()
    model(SAMPLE)
    assert seen == [nn.SiLU]


@BOTH
def test_evaluation_mode_is_lost(replace):
    model = nn.Sequential(nn.ReLU()).eval()
    replace(model, "relu", "prelu")
    assert not model[0].training


@BOTH
def test_the_dtype_is_lost(replace):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).bfloat16()
    replace(model, "relu", "prelu")
    assert model[1].weight.dtype == torch.bfloat16


@BOTH
def test_the_device_is_lost(replace):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to("meta")
    replace(model, "relu", "prelu")
    assert model[1].weight.device.type == "meta"


@BOTH
def test_what_was_frozen_is_trained(replace):
    model = nn.Sequential(nn.PReLU()).requires_grad_(False)
    replace(model, "prelu", "swish(learnable=True, channels='infer')", SAMPLE)
    assert not any(parameter.requires_grad for parameter in model.parameters())


@BOTH
def test_parameters_per_channel_need_their_number(replace):
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU())
    replace(model, "relu", "swish(learnable=True, channels='infer')")
    assert [parameter.shape for parameter in model[1].parameters()] == [(8,)]


@BOTH
def test_what_matches_nothing_passes_in_silence(replace):
    with pytest.raises(SwapError):
        replace(nn.Sequential(nn.Linear(4, 4)), "relu", "silu")


@BOTH
def test_a_gated_unit_halves_its_input_and_fails_later(replace):
    model = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))
    with pytest.raises(SwapError):
        replace(model, "relu", "glu")


@BOTH
@pytest.mark.parametrize("cls", [nets.AliasedModule, nets.AliasedFunction])
def test_what_relies_on_being_overwritten_changes_its_meaning(replace, cls):
    with pytest.raises(SwapError):
        replace(build(cls), "relu", "silu", SAMPLE)


@BOTH
def test_a_failure_half_way_leaves_half_a_swap(replace):
    class Stubborn(nn.Sequential):
        def __setattr__(self, name, value):
            assert not isinstance(value, nn.SiLU)
            super().__setattr__(name, value)

    model = nn.Sequential(nn.ReLU(), Stubborn(nn.ReLU()))
    with contextlib.suppress(AssertionError):
        replace(model, "relu", "silu")
    assert type(model[0]) is nn.ReLU


@BOTH
def test_a_fused_kernel_that_never_looks_at_the_module_is_not_noticed(replace):
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return F.silu(x)

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.act_fn = nn.SiLU()

        def forward(self, x):
            return Fused.apply(x)

    report = replace(MLP(), "silu", "tanh", SAMPLE)
    assert "never called" in str(report)


@BOTH
def test_other_libraries_have_classes_of_their_own(replace):
    model = nn.Sequential(NewGELUActivation())
    replace(model, "gelu", "silu")
    assert torch.equal(model(SAMPLE), F.silu(SAMPLE))


@BOTH
def test_two_wishes_for_one_place_are_settled_by_their_order(replace):
    model = nn.Sequential(nn.ReLU())

    def wish_twice():
        if replace is naive:
            naive(model, "relu", "silu")
            naive(model, "relu", "tanh")
        else:
            surgery.swap(model, {nn.ReLU: "silu", "0": "tanh"})

    with pytest.raises(SwapError):
        wish_twice()


@BOTH
def test_there_is_no_way_back(replace):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    before = dict(model.named_modules())
    report = replace(model, "relu", "prelu")
    assert report is not None
    report.undo()
    assert dict(model.named_modules()) == before
