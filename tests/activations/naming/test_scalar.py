"""Activations as functions of one number."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError
from lit_gelu.activations.naming.scalar import ScalarActivation


@pytest.mark.parametrize("spec", ["swish(learnable=True, channels=7)", "swish(learnable=True, channels='infer')"])
def test_learned_channels_start_equal(spec):
    assert activations.compare(spec, "silu").value.largest == 0.0
    assert activations.info(spec).minimum == activations.info("silu").minimum


@pytest.mark.parametrize("coefficients", [(0.0, 1.0, 0.5), (1.0, 1.0, 1.0)])
def test_coefficients_are_no_channels(coefficients):
    class Polynomial(nn.Module):
        def __init__(self):
            super().__init__()
            self.coefficients = nn.Parameter(torch.tensor(coefficients))

        def forward(self, x):
            return sum(c * x**k for k, c in enumerate(self.coefficients))

    f, slope, bend = ScalarActivation.of(Polynomial(), None).functions
    x = torch.tensor([2.0], dtype=torch.float64)
    a, b, c = coefficients
    assert [g(x).item() for g in (f, slope, bend)] == pytest.approx([a + 2 * b + 4 * c, b + 4 * c, 2 * c])


derivative = activations.functional.derivative


@pytest.mark.parametrize("make", [lambda: nn.PReLU(3), lambda: activations.create("swish(learnable=True)")])
def test_live_parameters_are_used(make):
    module = make().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.linspace(0.1, 0.5, parameter.numel()).reshape(parameter.shape).double())
    x = torch.linspace(-3, 3, 30, dtype=torch.float64).reshape(10, 3)
    y = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(module(y).sum(), y)
    torch.testing.assert_close(derivative(module, x, 1).detach(), expected)


@pytest.mark.parametrize(
    ("activation", "x", "order"),
    [
        *(("gelu", torch.zeros(1), order) for order in (3, -1, True, 1.5, "1")),
        (nn.Flatten(0), torch.zeros(2, 4), 1),
        ("gelu", torch.tensor([1, 2]), 1),
        (nn.Softsign(), torch.tensor([1, 2]), 1),
    ],
)
def test_other_orders_shapes_and_numbers_are_refused(activation, x, order):
    with pytest.raises(ActivationArgumentError):
        derivative(activation, x, order)


@pytest.mark.parametrize("returned", [None, ()])
def test_an_activation_that_returns_no_tensor_is_refused(returned):
    class OfAClass(nn.Module):
        def forward(self, x):
            return returned

    registry = activations.ActivationRegistry()
    registry.register("forgot")(lambda x: returned)
    registry.register("forgot_too")(OfAClass)
    uses = [partial(activations.gain, registry=registry)]
    uses.append(partial(activations.compare, "relu", registry=registry))
    uses += [partial(derivative, x=torch.zeros(2), order=order, registry=registry) for order in (0, 1, 2)]
    for use in uses:
        for name in ("forgot", "forgot_too"):
            with pytest.raises(ActivationArgumentError):
                use(name)


def test_what_is_registered_as_not_elementwise_is_refused():
    registry = activations.ActivationRegistry()
    facts = activations.ActivationFacts(elementwise=False)
    registry.register("softmax", facts=facts)(lambda x: torch.softmax(x, -1))
    with pytest.raises(ActivationArgumentError):
        derivative("softmax", torch.zeros(2, 4), 1, registry=registry)  # the sum of its outputs has derivative 0
    torch.testing.assert_close(derivative("softmax", torch.zeros(4), 0, registry=registry), torch.full((4,), 0.25))


def test_hooks_on_the_module_are_not_called():
    module = nn.Softsign()
    module.register_forward_hook(lambda *_: pytest.fail("a hook was called"))
    for order in (0, 1, 2):
        derivative(module, torch.zeros(2), order)


@pytest.mark.parametrize("make", [nn.Hardtanh, lambda inplace: nn.Sequential(nn.ELU(inplace=inplace), nn.Tanh())])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_module_that_writes_in_place_leaves_its_input(make, order):
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    inputs = x.clone()
    values = derivative(make(inplace=True), inputs, order)
    assert torch.equal(inputs, x)
    torch.testing.assert_close(values, derivative(make(inplace=False), x, order))


def test_a_registered_function_may_write_in_place():
    registry = activations.ActivationRegistry()
    registry.register("clip")(lambda x: F.hardtanh(x, -1.0, 1.0, inplace=True))
    x = torch.tensor([-3.0, 0.5, 3.0])
    assert derivative("clip", x, 0, registry=registry).tolist() == [-1.0, 0.5, 1.0]
    assert derivative("clip", x, 1, registry=registry).tolist() == [0.0, 1.0, 0.0]
    assert x.tolist() == [-3.0, 0.5, 3.0]
    assert activations.gain("clip", registry=registry) == pytest.approx(1.39203614, abs=5e-9)  # scipy, of min(|x|, 1)
    assert registry.info("clip").range == (-1.0, 1.0)


def test_the_module_s_mode_is_left_as_it_was():
    module = nn.Sequential(nn.RReLU(), nn.Dropout(0.5)).train()
    module[1].eval()
    first, second = (derivative(module, torch.tensor([-1.0]), 1) for _ in range(2))
    assert torch.equal(first, second)  # evaluation mode: no random slope
    assert [part.training for part in module.modules()] == [True, True, False]
