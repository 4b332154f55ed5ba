"""The number of channels of an activation with parameters per channel: given, inferred, written down."""

import io
import warnings

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationArgumentError
from lit_gelu.errors import SwapError
from lit_gelu.surgery import infer_channels_

SWISH = "swish(channels='infer', learnable=True)"
GAUSSIAN = "gaussian_gelu(channels='infer', learnable=True, mu=0.5)"


ZEROS = torch.zeros(2, 4, dtype=torch.float64)


def create(spec=SWISH):
    return activations.create(spec)


@pytest.mark.parametrize(
    ("before", "count", "x"),
    [
        ([nn.Linear(4, 6)], 6, torch.zeros(2, 4)),
        ([nn.Conv1d(4, 5, 1)], 5, torch.zeros(2, 4, 3)),
        ([nn.ConvTranspose2d(4, 7, 2)], 7, torch.zeros(2, 4, 3, 3)),
        ([nn.Conv3d(2, 3, 1), nn.BatchNorm3d(3), nn.Dropout()], 3, torch.zeros(2, 2, 2, 2, 2)),
        ([nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 9)), nn.Identity()], 9, torch.zeros(2, 4)),
        ([nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8)], 8, torch.zeros(2, 3, 2, 2)),
    ],
    ids=lambda value: type(value[-1]).__name__ if isinstance(value, list) else None,
)
def test_the_layer_before_says_how_many(before, count, x):
    model = nn.Sequential(*before, create())
    assert infer_channels_(model) == {str(len(before)): count}
    assert model[-1].log_scale.shape == (count,)
    assert model(x).shape[1] == count
    assert infer_channels_(model) == {}  # nothing is left to do


def test_the_same_parent_comes_first():
    model = nn.Sequential(nn.Linear(4, 9), nn.Sequential(nn.Linear(9, 6), nn.Sequential(create()), nn.Linear(6, 2)))
    assert infer_channels_(model) == {"1.1.0": 6}
    model = nn.Sequential(nn.Linear(4, 9), nn.Sequential(create(), nn.Linear(9, 2)))
    assert infer_channels_(model) == {"1.0": 9}


def test_a_swap_infers_and_the_report_names_the_number():
    model = nn.Sequential(BasicBlock(8, 8), nn.Flatten(), nn.Linear(8, 5), nn.ReLU())
    report = surgery.swap(model, {"0.relu": GAUSSIAN, "3": {"name": "swish", "channels": "infer", "learnable": True}})
    assert [str(row.new) for row in report.rows] == [
        "gaussian_gelu(channels=8, learnable=True, mu=0.5)",
        "swish(channels=5, learnable=True)",
    ]
    assert model(torch.zeros(2, 8, 1, 1)).shape == (2, 5)
    again = surgery.swap(model, {"3": SWISH})
    assert (len(again), len(again.skipped)) == (0, 1)  # it is that already
    report.undo()
    assert type(model[3]) is nn.ReLU


def test_a_transformer_layer_s_activation_is_between_its_linear_layers():
    layer = nn.TransformerEncoderLayer(8, 2, 24, activation=nn.ReLU(), batch_first=True)
    surgery.swap(layer, {"activation": "swish(learnable=True, channels='infer', channel_dim=-1)"})
    assert layer.activation.log_scale.shape == (24,)
    assert layer(torch.zeros(2, 5, 8)).shape == (2, 5, 8)


class Backwards(nn.Module):
    """Its modules are registered in another order than forward calls them, and the size is changed in between."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(2, 3)
        self.activation = create("swish(learnable=True, channels='infer', channel_dim=-1)")
        self.linear = nn.Linear(4, 12)

    def forward(self, x, scale=1.0):
        return self.activation(scale * self.linear(x).reshape(x.shape[0], 2, 6))


@pytest.mark.parametrize("sample", [ZEROS, (ZEROS, 2.0), {"x": ZEROS}])
def test_a_sample_finds_what_the_order_of_modules_does_not_say(sample):
    model = Backwards().double().train()
    assert infer_channels_(model, sample) == {"activation": 6}
    assert model.training
    assert model.activation.log_scale.dtype == torch.float64
    assert not model.activation._forward_pre_hooks
    wrong = Backwards()
    infer_channels_(wrong)
    with pytest.raises(ActivationArgumentError):
        wrong(torch.zeros(2, 4))


def test_an_unresolved_activation_and_channels_last_are_refused():
    model = nn.Sequential(nn.Linear(4, 6), create())
    for x in (torch.zeros(2, 4), torch.zeros(2, 5, 4)):
        with pytest.raises(ActivationArgumentError):
            model(x)
        infer_channels_(model)


def test_what_cannot_be_inferred_is_refused():
    with pytest.raises(SwapError):
        infer_channels_(nn.Sequential(create(), nn.Linear(4, 4)))
    with pytest.raises(SwapError):
        infer_channels_(create())
    shared = create()
    with pytest.raises(SwapError):
        infer_channels_(nn.Sequential(nn.Linear(3, 4), shared, nn.Linear(4, 5), shared))
    model = Backwards()
    model.forward = model.linear.forward
    with pytest.raises(SwapError):
        infer_channels_(model, torch.zeros(2, 4))
    with pytest.raises(SwapError):
        surgery.swap(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), {"0": SWISH})


def test_the_spec_holds_the_number_and_a_checkpoint_loads_with_weights_only():
    model = nn.Sequential(nn.Linear(4, 6), create(GAUSSIAN))
    infer_channels_(model)
    with torch.no_grad():
        model[1].mu_offset.copy_(torch.arange(6))
    spec = activations.spec_of(model[1])
    assert str(spec) == "gaussian_gelu(channels=6, learnable=True, mu=0.5)"
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert list(state) == ["0.weight", "0.bias", "1.mu_offset", "1.log_scale"]
    for activation in (activations.create(spec), create(GAUSSIAN)):  # what is to be inferred takes the saved size
        twin = nn.Sequential(nn.Linear(4, 6), activation)
        twin.load_state_dict(state)
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
        assert torch.equal(twin(x), model(x))


def test_a_model_that_has_not_seen_a_batch():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU())
    surgery.swap(model, {nn.ReLU: "gelu"})
    with pytest.raises(SwapError):
        surgery.find_sites(nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d(), nn.ReLU()), ZEROS)


@pytest.mark.parametrize("move", [{"dtype": torch.bfloat16}, {"device": "meta"}], ids=["dtype", "device"])
def test_channels_from_what_is_loaded_are_where_the_model_is(move):
    def build():
        return nn.Sequential(nn.Linear(4, 5), create())

    saved = build()
    infer_channels_(saved)
    assert set(saved.state_dict()) == {"0.weight", "0.bias", "1.log_scale"}
    loaded = build().to(**move)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*meta parameter.*no-op")
        loaded.load_state_dict(saved.state_dict())
    (name,) = move
    assert {getattr(parameter, name) for parameter in loaded.parameters()} == {getattr(torch.empty(0, **move), name)}
    assert not list(loaded.buffers())
