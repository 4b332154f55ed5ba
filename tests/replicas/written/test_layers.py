"""Layers written out against autograd over torch's own, to the bit."""

import pytest
import torch
from torch import nn

from lit_gelu.activations import create
from lit_gelu.replicas.forward.written_activations import written_activation
from lit_gelu.replicas.written.layers import (
    LinearPart,
    OwnActivation,
    WrittenActivation,
)

BATCH, WIDTH = 5, 13


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def kept(name, width):
    return torch.empty(BATCH, width)


def pair(width):
    return torch.empty(2, BATCH, width).unbind()


def checked(part, function, inputs, gradient, of_inputs=True):
    """Compare outputs and gradients of a part and of a function."""
    leaf = inputs.clone().requires_grad_()
    wanted = function(leaf)
    wanted.backward(gradient)
    with torch.no_grad():
        assert torch.equal(part.noise_free(inputs), wanted)
        assert torch.equal(part.forward(inputs), wanted)
        found = part.backward(gradient.clone())
    assert not of_inputs or torch.equal(found, leaf.grad)


@pytest.mark.parametrize(
    "name", ["relu", "gelu", "gelu_tanh", "elu", "elu(alpha=0.3)", "silu", "mish", "prelu", "swish(learnable=True)"]
)
def test_activations(generator, name):
    module, inputs = create(name), torch.randn(BATCH, WIDTH, generator=generator) * 3
    inputs[0, :3] = torch.tensor([0.0, -0.0, 30.0])
    written = written_activation(module)
    assert (written is None) == (name.partition("(")[0] in {"mish", "prelu", "swish"})
    values = {f"at.{key}": value.detach().clone() for key, value in module.named_parameters()}
    gradients = {key: torch.zeros_like(value) for key, value in values.items()}
    part = (
        OwnActivation("at", module, values, gradients)
        if written is None
        else WrittenActivation(written, kept, pair(WIDTH))
    )
    checked(part, module, inputs, torch.randn(BATCH, WIDTH, generator=generator))
    for key, value in module.named_parameters():
        assert torch.equal(gradients[f"at.{key}"], value.grad)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_linear(generator, has_bias, is_first):
    layer = nn.Linear(7, WIDTH, bias=has_bias)
    values = {f"at.{name}": value.detach() for name, value in layer.named_parameters()}
    gradients = {name: torch.empty_like(value) for name, value in values.items()}
    part = LinearPart("at", values, gradients, kept, pair(WIDTH), is_first)
    inputs, gradient = (torch.randn(BATCH, size, generator=generator) for size in (7, WIDTH))
    checked(part, layer, inputs, gradient, of_inputs=not is_first)
    for name, value in layer.named_parameters():
        assert torch.equal(gradients[f"at.{name}"], value.grad)
