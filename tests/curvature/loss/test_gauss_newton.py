"""The Gauss-Newton product against J' B J from full Jacobians in float64."""

import pytest
import torch
from loss_nets import ACTIVATIONS, classifier, everything, named
from torch import nn
from torch.nn import functional as F

from lit_gelu.curvature.loss import (
    ParameterLayout,
    extreme_eigenvalues,
    gauss_newton_operator,
    symmetry_error,
)
from lit_gelu.errors import ArgumentError, UnsupportedRunError

ATOL = {"forward_mode": 1e-13, "double_vjp": 1e-13, "finite_differences": 1e-8}


def full_matrix(model, inputs, loss):
    """J' B J, row by row backwards."""
    layout = ParameterLayout(named(model))

    def outputs(vector):
        parts = dict(zip(layout.tensors, layout.split(vector), strict=True))
        return torch.func.functional_call(model, parts, (inputs,), tie_weights=True)

    jacobian = torch.autograd.functional.jacobian(outputs, layout.values())
    z = model(inputs).detach()
    inner = torch.autograd.functional.hessian(loss, z).reshape(z.numel(), z.numel())
    jacobian = jacobian.reshape(z.numel(), -1)
    return jacobian.T @ inner @ jacobian


@pytest.mark.parametrize("method", ATOL)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equals_the_full_matrix(activation, method):
    model, inputs, loss = everything(activation)
    matrix = full_matrix(model, inputs, loss)
    vector = torch.linspace(-1, 1, len(matrix), dtype=torch.float64)
    operator = gauss_newton_operator(lambda: model(inputs), loss, named(model), method=method, module=model)
    for _ in range(2):
        torch.testing.assert_close(operator(vector), matrix @ vector, rtol=0, atol=ATOL[method])
    assert operator.products == 2


@pytest.mark.parametrize("name", ["mse", "quartic", "linear"])
def test_any_twice_differentiable_loss(name):
    model, inputs, _ = classifier()
    targets = torch.randn(20, 3, dtype=torch.float64)
    loss = {
        "mse": lambda z: F.mse_loss(z, targets),
        "quartic": lambda z: ((z - targets) ** 4).mean(),
        "linear": lambda z: (z * targets).mean(),
    }[name]
    matrix = full_matrix(model, inputs, loss)
    operator = gauss_newton_operator(lambda: model(inputs), loss, named(model))
    vector = torch.linspace(-1, 1, len(matrix), dtype=torch.float64)
    torch.testing.assert_close(operator(vector), matrix @ vector, rtol=0, atol=1e-13)


def test_loss_and_gradient_are_those_of_the_model():
    model, inputs, loss = classifier()
    value = loss(model(inputs))
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))])
    operator = gauss_newton_operator(lambda: model(inputs), loss, named(model))
    torch.testing.assert_close(operator.gradient, gradient, rtol=0, atol=1e-15)
    torch.testing.assert_close(operator.loss, value.detach())


def test_is_symmetric_and_positive_semidefinite_for_a_convex_loss():
    model, inputs, loss = everything("mish")
    operator = gauss_newton_operator(lambda: model(inputs), loss, named(model), module=model)
    assert symmetry_error(operator) < 1e-12
    assert extreme_eigenvalues(operator, steps=40, which="smallest").value > -1e-12


def test_auto_takes_the_recorded_graph():
    model, inputs, loss = classifier()
    with gauss_newton_operator(lambda: model(inputs), loss, named(model), module=model) as operator:
        operator(torch.ones(operator.size))
        assert operator.method == "double_vjp"
    with gauss_newton_operator(lambda: model(inputs), loss, named(model)) as operator:
        operator(torch.ones(operator.size))
        assert operator.method == "double_vjp"


def test_fused_attention_falls_back_to_finite_differences_of_the_outputs():
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    loss = lambda z: z.square().mean()  # noqa: E731
    outputs = lambda: attention(x, x, x, need_weights=False)[0]  # noqa: E731
    operator = gauss_newton_operator(outputs, loss, named(attention), module=attention)
    product = operator(torch.ones(operator.size))
    assert operator.method == "finite_differences"
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        exact = gauss_newton_operator(outputs, loss, named(attention), module=attention)
        torch.testing.assert_close(product, exact(torch.ones(exact.size)), rtol=0, atol=1e-8)


def test_mish_beyond_89_is_finite():  # D14
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Mish(), nn.Linear(8, 1)), torch.randn(10, 3) * 300
    operators = [
        gauss_newton_operator(lambda: model(x), lambda z: z.square().mean(), named(model), method=method, module=model)
        for method in ("forward_mode", "double_vjp")
    ]
    products = [operator(torch.ones(41)) for operator in operators]
    torch.testing.assert_close(products[0], products[1], rtol=1e-4, atol=0)


def test_nothing_of_the_model_changes():  # D1
    model, inputs, loss = classifier()
    loss(model(inputs)).backward()
    before = [(p.clone(), p.grad.clone(), p._version) for p in model.parameters()]
    for method in ATOL:
        operator = gauss_newton_operator(lambda: model(inputs), loss, named(model), method=method, module=model)
        operator(torch.ones(operator.size))
    for p, (value, gradient, version) in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value)
        assert torch.equal(p.grad, gradient)
        assert p._version == version


class TestRefuses:
    def test_outputs_without_parameters_or_of_another_type(self):
        model, inputs, loss = classifier()
        with pytest.raises(ArgumentError, match="depend on no parameter"):
            gauss_newton_operator(lambda: model(inputs).detach(), loss, named(model))
        with pytest.raises(ArgumentError, match="returned tuple"):
            gauss_newton_operator(lambda: (model(inputs),), loss, named(model))

    def test_a_loss_that_ignores_the_outputs_or_is_no_number(self):
        model, inputs, _ = classifier()
        with pytest.raises(ArgumentError, match="does not depend on the outputs"):
            gauss_newton_operator(lambda: model(inputs), lambda z: torch.ones((), requires_grad=True) * 2, named(model))
        with pytest.raises(ArgumentError, match="scalar"):
            gauss_newton_operator(lambda: model(inputs), lambda z: z, named(model))
        with pytest.raises(UnsupportedRunError, match="loss is nan"):
            gauss_newton_operator(lambda: model(inputs), lambda z: z.sum() * torch.nan, named(model))

    def test_unknown_methods_and_numbers_of_losses_that_do_not_fit(self):
        model, inputs, loss = classifier()
        with pytest.raises(ArgumentError, match="method='jvp'"):
            gauss_newton_operator(lambda: model(inputs), loss, named(model), method="jvp")
        with pytest.raises(ArgumentError, match="1 closures for outputs came with 2 losses"):
            gauss_newton_operator(lambda: model(inputs), [loss, loss], named(model))
