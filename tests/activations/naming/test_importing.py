"""Partials of module classes, as timm's `act_layer` takes them, against the module that the partial builds."""

import functools

import pytest
import torch
from torch import nn

from lit_gelu.activations import create
from lit_gelu.errors import ArgumentError, SpecError

X = torch.linspace(-3, 3, 13)


class Scaled(nn.Module):
    def __init__(self, scale=1.0, shift=0.0):
        super().__init__()
        self.scale, self.shift = scale, shift

    def forward(self, x):
        return self.scale * x + self.shift


class _Marked(functools.partial):
    """Python does not join a partial with an attribute, or of another class, with one around it."""


PARTIALS = (
    functools.partial(nn.LeakyReLU, 0.3),
    functools.partial(nn.LeakyReLU, 0.3, inplace=False),
    functools.partial(nn.Softplus, 2.0),
    functools.partial(nn.ELU, 0.5),
    functools.partial(nn.GELU, "tanh"),
    functools.partial(nn.PReLU, 1, 0.1),
    functools.partial(nn.Hardtanh, -2, 2),
    functools.partial(Scaled, 2.0),
    functools.partial(_Marked(Scaled, 2.0), 1.0),
    functools.partial(_Marked(nn.GELU, "tanh")),
    functools.partial(_Marked(Scaled, shift=3.0), 2.0, shift=1.0),
)


@pytest.mark.parametrize("partial", PARTIALS, ids=str)
def test_positional_arguments_of_a_class_are_its_constructor_s(partial):
    module = create(partial)
    assert type(module) is type(partial())
    assert torch.equal(module(X.clone()), partial()(X.clone()))


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError):
        create(functools.partial(nn.GELU, "tanh", 2))
    with pytest.raises(ArgumentError):
        create(functools.partial(nn.LeakyReLU, 0.3, negative_slope=0.2))
    with pytest.raises(ArgumentError):
        create(functools.partial(nn.Sequential, nn.ReLU()))
    with pytest.raises(SpecError):
        create(functools.partial(dict, {}))
