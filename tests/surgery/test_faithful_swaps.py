"""A swap changes the activation and nothing else: containers, other activations, buffers, overwritten inputs."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu import activations, surgery
from lit_gelu.errors import SwapError

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


class Residual(nn.Sequential):
    def forward(self, x):
        return F.relu(x + super().forward(x))


class Held(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4))
        self.act = F.relu

    def forward(self, x):
        return self.act(super().forward(x))


class Enumerated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        for layer in self.children():
            x = F.relu(layer(x))
        return x


@pytest.mark.parametrize(
    ("made", "sample"),
    [
        (lambda: Residual(nn.Linear(4, 4), nn.Linear(4, 4)), X),
        (Enumerated, X),
        (Held, X),
        (Held, None),  # of the others nothing is a site without a sample
    ],
)
def test_a_new_child_becomes_no_layer(made, sample):
    model = made()
    before, children = model(X), list(model.children())
    with pytest.raises(SwapError):
        surgery.swap(model, {"*": "silu"}, sample)
    assert torch.equal(model(X), before)
    assert list(model.children()) == children


class WritesTo(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        torch.tanh(x, out=y)
        return y + torch.sigmoid(F.relu(x))


def test_a_call_that_writes_to_a_buffer_is_no_site():
    model = WritesTo()
    assert [site.spec.name for site in surgery.find_sites(model, X)] == ["relu", "sigmoid"]
    surgery.swap(model, {"*": "gelu"}, X)
    assert torch.equal(model(X), torch.tanh(X) + torch.sigmoid(F.gelu(X)))


class Alias(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.a = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.l(x)
        y = self.a(h) + h
        return y + self.a(y - 1)


class InTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        h = self.l(x)
        return F.relu(h, inplace=True) + h if self.training else F.relu(h)


@pytest.mark.parametrize(
    ("made", "target"), [(Alias, "a"), (Alias, "a#0"), (InTraining, "*")], ids=["module", "one call", "in training"]
)
def test_an_input_that_is_used_again(made, target):
    with pytest.raises(SwapError):
        surgery.swap(made(), {target: "leaky_relu(negative_slope=0.0)"}, X)


def test_the_other_call_of_a_module_may_be_swapped():
    model = Alias()
    before = model(X)
    surgery.swap(model, {"a#1": "leaky_relu(negative_slope=0.0)"}, X)
    assert torch.equal(model(X), before)


def test_a_model_that_has_not_seen_a_batch():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU())
    surgery.swap(model, {nn.ReLU: "gelu"})
    with pytest.raises(SwapError):
        surgery.find_sites(nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d(), nn.ReLU()), X)


@pytest.mark.parametrize("move", [{"dtype": torch.bfloat16}, {"device": "meta"}], ids=["dtype", "device"])
def test_channels_from_what_is_loaded_are_where_the_model_is(move):
    def made():
        return nn.Sequential(nn.Linear(4, 5), activations.create("swish(learnable=True, channels='infer')"))

    saved = made()
    surgery.infer_channels_(saved)
    assert set(saved.state_dict()) == {"0.weight", "0.bias", "1.log_scale"}
    loaded = made().to(**move)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*meta parameter.*no-op")
        loaded.load_state_dict(saved.state_dict())
    (name,) = move
    assert {getattr(parameter, name) for parameter in loaded.parameters()} == {getattr(torch.empty(0, **move), name)}
    assert not list(loaded.buffers())
