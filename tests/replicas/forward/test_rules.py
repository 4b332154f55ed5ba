"""The rules against torch's own layers, replica by replica."""

import pytest
import torch
from replica_runs import batched_products_are_single_ones
from torch.nn import functional

from lit_gelu import activations
from lit_gelu.activations.registry import registry
from lit_gelu.replicas.forward.rules import ActivationRule, LinearUnderVmap, linear, shared_function
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.randomness.streams import Streams

SHAPES = [((16,), 150, 25), ((128,), 784, 10), ((3, 5), 20, 30), ((), 40, 50), ((2,), 30, 5)]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("samples", "fed", "width"), SHAPES)
def test_linear(samples, fed, width, has_bias):
    inputs, weight = torch.randn(3, *samples, fed, requires_grad=True), torch.randn(3, width, fed, requires_grad=True)
    bias = torch.randn(3, width, requires_grad=True) if has_bias else None
    leaves = [inputs, weight, *([bias] if has_bias else [])]
    outputs = linear(inputs, weight, bias)
    gradient = torch.randn_like(outputs)
    found = torch.autograd.grad(outputs, leaves, gradient)
    exact = len(samples) == 1 and batched_products_are_single_ones((fed, width), samples[0])
    allowed = {"rtol": 0, "atol": 0} if exact or samples == (2,) else {}
    for r in range(3):
        own = [leaf[r].detach().requires_grad_() for leaf in leaves]
        alone = functional.linear(*own)
        torch.testing.assert_close(outputs[r], alone, **allowed)
        for ours, theirs in zip(found, torch.autograd.grad(alone, own, gradient[r]), strict=True):
            torch.testing.assert_close(ours[r], theirs, **allowed)


def test_linear_under_vmap_takes_what_all_replicas_share():
    inputs, weight, bias = torch.randn(5, 20), torch.randn(3, 7, 20, requires_grad=True), torch.randn(7)
    outputs = torch.vmap(LinearUnderVmap.apply, in_dims=(None, 0, None))(inputs, weight, bias)
    torch.testing.assert_close(outputs, torch.stack([functional.linear(inputs, w, bias) for w in weight]))
    (gradient,) = torch.autograd.grad(outputs.sum(), [weight])
    torch.testing.assert_close(gradient, inputs.sum(0).expand(3, 7, 20))


def rule_of(*specs, training=True):
    modules = [torch.nn.ModuleDict({"a": activations.create(spec)}).train(training) for spec in specs]
    streams = Streams([torch.Generator().manual_seed(r).get_state() for r in range(len(specs))])
    return ActivationRule("a", [m["a"] for m in modules], Stacks(modules), streams, registry)


@pytest.mark.parametrize("width", [64, 33])  # whole vectors, and a tail that torch computes by another formula
@pytest.mark.parametrize(
    ("specs", "is_written"),
    [
        (["gelu_tanh", "gelu_tanh", "silu", "prelu", "gelu_tanh", "mish", "mish"], False),
        (["gelu_tanh", "gelu_tanh", "silu", "relu", "elu(alpha=0.3)", "elu", "gelu"], True),
    ],
)
def test_mixed_activations(specs, is_written, width):
    rule, inputs = rule_of(*specs), torch.randn(len(specs), 3, width, requires_grad=True)
    assert bool(rule.written) == is_written
    outputs = rule(inputs)
    (gradient,) = torch.autograd.grad(outputs.sum(), [inputs])
    for r, spec in enumerate(specs):
        own = inputs[r].detach().requires_grad_()
        alone = activations.create(spec)(own)
        assert torch.equal(outputs[r], alone)
        assert torch.equal(gradient[r], torch.autograd.grad(alone.sum(), [own])[0])


def test_neighbours_with_one_activation_are_computed_together():
    assert [len(replicas) for _, replicas in rule_of("relu", "relu", "silu", "prelu", "prelu").runs] == [2, 1, 1, 1]


def test_a_stochastic_activation_draws_from_the_replicas_own_stream():
    rule, inputs = rule_of("zero_identity_map", "relu", "zero_identity_map"), torch.randn(3, 4, 16)
    outputs = rule(inputs)
    for r in (0, 2):
        torch.manual_seed(r)
        assert torch.equal(outputs[r], rule.modules[r](inputs[r]))
    assert not torch.equal(outputs[0], activations.create("relu")(inputs[0]))


@pytest.mark.parametrize("spec", ["prelu", "zero_identity_map", "glu", "swish(learnable=True)"])
def test_what_is_no_function_of_each_element_is_computed_one_by_one(spec):
    module = activations.create(spec)
    assert shared_function(module, registry) is None


def test_the_same_function_in_two_ways_is_two_functions():
    names = {shared_function(m, registry) for m in (torch.nn.ELU(), torch.nn.ELU(2.0), torch.nn.ReLU(), torch.nn.ELU())}
    assert len(names) == 3
