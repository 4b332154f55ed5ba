"""Where an input has its channels, told by the layer before it or not at all; samples of whole rows, unbiased."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.activations import registry
from lit_gelu.curvature.activation.call_sites import watchable_sites
from lit_gelu.curvature.activation.input_layout import (
    ChannelLayout,
    count_rows,
    dim_of_channels,
    layout_of_layer,
    spread_rows,
    take_rows,
)


@pytest.mark.parametrize(
    ("layout", "shape", "dim"),
    [
        (ChannelLayout(16, -1), (8, 7, 7, 16), 3),
        (ChannelLayout(16, 1), (8, 16, 7, 7), 1),
        (ChannelLayout(16, 1), (8, 7, 7, 16), 3),  # turned in between: the number tells
        (ChannelLayout(16, -1), (8, 16, 16), 2),
        (ChannelLayout(16, 1), (8, 16, 16), 1),
        (ChannelLayout(16, None), (8, 16, 16), None),
        (ChannelLayout(16, -1), (16, 5, 7), None),  # examples are no channels
        (ChannelLayout(16, -1), (8, 4, 64), None),
        (ChannelLayout(16, -1), (8, 400), 1),
        (None, (8, 400), 1),
        (None, (8, 7, 400), None),
        (None, (8,), None),
        (ChannelLayout(8, -1), (8,), None),
        (ChannelLayout(8, -1), (), None),
    ],
)
def test_the_dimension_of_the_right_size(layout, shape, dim):
    assert dim_of_channels(layout, shape) == dim


class WithBias(nn.Module):
    """As transformers' ``Conv1D``, a linear layer of its own."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(3, 8)), nn.Parameter(torch.zeros(8))


@pytest.mark.parametrize(
    ("layer", "layout"),
    [
        (nn.Linear(3, 8, bias=False), ChannelLayout(8, -1)),
        (nn.Bilinear(3, 4, 8), ChannelLayout(8, -1)),
        (nn.Conv2d(3, 8, 1), ChannelLayout(8, 1)),
        (nn.ConvTranspose1d(3, 8, 1), ChannelLayout(8, 1)),
        (nn.BatchNorm3d(8, affine=False), ChannelLayout(8, 1)),
        (nn.InstanceNorm2d(8), ChannelLayout(8, 1)),
        (nn.GroupNorm(2, 8), ChannelLayout(8, 1)),
        (nn.LayerNorm(8), ChannelLayout(8, -1)),
        (nn.RMSNorm(8), ChannelLayout(8, -1)),
        (nn.LayerNorm((8, 7, 7)), None),
        (type("LayerNorm2d", (nn.LayerNorm,), {})(8), ChannelLayout(8, None)),  # timm's turns its input
        (WithBias(), ChannelLayout(8, None)),
        (nn.Embedding(3, 8), None),
        (nn.Dropout(), None),
    ],
)
def test_what_layers_say(layer, layout):
    assert layout_of_layer(layer) == layout


class Whisper(nn.Module):
    """Two convolutions over time, then a layer over their channels; functions alone, as in Whisper's encoder."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 7)
        self.first, self.second = nn.Conv1d(3, 5, 3), nn.Conv1d(5, 5, 3)

    def forward(self, x):
        x = F.gelu(self.second(F.gelu(self.first(x))))
        return F.gelu(self.last(x.transpose(1, 2)))


def layouts_of(model, sample=None):
    return {name: call.layout for name, call in watchable_sites(model, sample, registry=registry).calls.items()}


class Shared(nn.Module):
    """One activation after two layers, and one after a layer that is registered behind it."""

    def __init__(self, second):
        super().__init__()
        self.act, self.late = nn.GELU(), nn.ReLU()
        self.one, self.two = nn.Linear(4, 4), second
        self.three = nn.Linear(4, 9)

    def forward(self, x):
        return self.late(self.three(self.act(self.two(self.act(self.one(x))))))


@pytest.mark.parametrize(("second", "expected"), [(nn.Linear(4, 4), ChannelLayout(4, -1)), (nn.GroupNorm(1, 4), None)])
def test_layers_that_do_not_agree_say_nothing(second, expected):
    found = layouts_of(Shared(second), torch.zeros(2, 4, 4))
    assert found["act"] == expected
    assert found["late"] == ChannelLayout(9, -1)
    assert layouts_of(Shared(second)) == {"act": None, "late": None}  # no layer is registered before them


def test_an_activation_with_channels_of_its_own_says_it_itself():
    model = nn.Sequential(
        nn.Linear(3, 8), registry.create("swish(learnable=True, channels=8, channel_dim=-1)"), nn.PReLU(8)
    )
    found = layouts_of(model)
    assert found == {"1": ChannelLayout(8, -1), "2": ChannelLayout(8, 1)}
    assert layouts_of(nn.Sequential(nn.Linear(3, 8), nn.PReLU()))["1"] == ChannelLayout(8, -1)


def test_the_sample_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.GELU()).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    assert layouts_of(model, torch.randn(6, 3, generator=torch.Generator()))["3"] == ChannelLayout(4, 1)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def draw_rows(count, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return spread_rows(count, torch.arange(rows) + torch.rand(rows, dtype=torch.float64, generator=generator))


@pytest.mark.parametrize(
    ("shape", "rows", "row_shape"),
    [
        ((), 1, ()),
        ((5,), 5, ()),
        ((5, 3), 5, (3,)),
        ((5, 4, 3), 20, (3,)),
        ((5, 3, 2, 2), 20, (3,)),
        ((2, 3, 2, 2, 2), 16, (3,)),
    ],
)
def test_rows_are_whole_channel_vectors(shape, rows, row_shape):
    x = torch.arange(float(max(1, torch.Size(shape).numel()))).reshape(shape)
    assert count_rows(x) == rows
    taken = take_rows(x, torch.arange(rows))
    assert taken.shape == (rows, *row_shape)
    reference = x.movedim(1, -1) if len(shape) >= 4 else x
    assert torch.equal(taken, reference.reshape(rows, *row_shape))


def test_whole_examples_keep_their_shape():
    x = torch.randn(5, 3, 2, 2)
    assert count_rows(x, whole_examples=True) == 5
    assert torch.equal(take_rows(x, torch.tensor([4, 0]), whole_examples=True), x[[4, 0]])


def test_every_row_is_drawn_equally_often():
    draws, count, rows = 4000, 25, 10
    index = torch.cat([draw_rows(count, rows, seed) for seed in range(draws)])
    times = index.bincount(minlength=count).double()
    expected = draws * rows / count
    assert (times - expected).abs().max() < 5 * expected**0.5


def test_mean_over_drawn_rows_is_unbiased_and_no_channel_is_left_out():
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)) + torch.arange(64)
    means = []
    for seed in range(1000):
        taken = take_rows(x, draw_rows(256, 16, seed))
        assert taken.shape == (16, 64)
        means.append(taken.double().mean())
    means = torch.stack(means)
    assert abs(means.mean() - x.double().mean()) < 4 * means.std() / 1000**0.5
    assert 0.5 < means.std() / (1 / (16 * 64) ** 0.5) < 1.5
