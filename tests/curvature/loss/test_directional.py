"""Curvature along an update: exact where the loss is a polynomial, and near it elsewhere."""

import math

import pytest
import torch
from loss_nets import classifier, full_hessian, named, symmetric

from lit_gelu.curvature.loss import (
    ParameterLayout,
    curvature_along,
    directional_curvature,
    hessian_operator,
    loss_and_gradient,
)
from lit_gelu.errors import ArgumentError, UnsupportedRunError

METHODS = ["loss", "gradient", "loss_and_gradient"]


class Polynomial:
    """L = b't + t'At / 2 + c sum t^3, with everything known."""

    def __init__(self, cubic=0.0, dtype=torch.float64):
        self.matrix = symmetric(8, seed=1, shift=3.0)
        self.linear = torch.linspace(-1, 1, 8, dtype=torch.float64)
        self.cubic = cubic
        values = torch.linspace(1, 2, 8, dtype=torch.float64).to(dtype)
        self.weight = values.requires_grad_()
        self.parameters = {"weight": self.weight}
        self.layout = ParameterLayout(self.parameters)

    def loss(self):
        t = self.weight.double()
        return self.linear @ t + t @ self.matrix @ t / 2 + self.cubic * (t**3).sum()

    def hessian(self):
        return self.matrix + 6 * self.cubic * torch.diag(self.weight.detach().double())


def step(problem, rate):
    """Take a step of gradient descent; return what is known from before."""
    loss, gradient = loss_and_gradient(problem.loss, problem.layout)
    hessian = problem.hessian()
    before = problem.layout.values()
    problem.weight.data.sub_(rate * problem.layout.split(gradient)[0])
    return loss, gradient, hessian, problem.layout.values() - before


def check(figures, update, gradient, hessian, rate, tolerance):
    form, slope = (update @ hessian @ update).item(), (gradient @ update).item()
    direction = -update / rate
    critical = (direction @ hessian @ direction / (gradient @ direction)).item()
    assert figures.quadratic_form == pytest.approx(form, rel=tolerance)
    assert figures.curvature == pytest.approx(form / (update @ update).item(), rel=tolerance)
    assert figures.slope == pytest.approx(slope, rel=1e-12)
    assert figures.critical_sharpness == pytest.approx(critical, rel=tolerance)
    assert figures.stability == pytest.approx(rate * critical / 2, rel=tolerance)


@pytest.mark.parametrize("method", METHODS)
def test_exact_on_a_quadratic_loss(method):
    problem = Polynomial()
    loss, gradient, hessian, update = step(problem, 0.05)
    figures = directional_curvature(
        problem.loss, problem.parameters, update, loss=loss, gradient=gradient, learning_rate=0.05, method=method
    )
    check(figures, update, gradient, hessian, 0.05, 1e-10)
    if method == "loss":
        assert figures.gradient_change is None
    else:
        exact = (hessian @ update).norm() / update.norm()
        assert figures.gradient_change == pytest.approx(exact.item(), rel=1e-12)


@pytest.mark.parametrize("rate", [0.05, 1e-12])
def test_a_product_is_exact_on_a_loss_that_is_far_from_quadratic(rate):
    problem = Polynomial(cubic=5.0)
    _, gradient, hessian, _ = step(problem, 0.0)
    update = -rate * gradient
    with hessian_operator(problem.loss, problem.parameters) as operator:
        figures = curvature_along(operator, update, learning_rate=rate)
    check(figures, update, gradient, hessian, rate, 1e-12)
    exact = (hessian @ update).norm() / update.norm()
    assert figures.gradient_change == pytest.approx(exact.item(), rel=1e-12)


def test_the_product_of_an_update_too_short_for_its_precision():
    problem = Polynomial(cubic=5.0, dtype=torch.float32)
    update = torch.full((8,), 1e-30)
    with hessian_operator(problem.loss, problem.parameters) as operator:
        figures = curvature_along(operator, update)
        still = curvature_along(operator, 0 * update)
    exact = problem.hessian().mean().item() * 8
    assert figures.curvature == pytest.approx(exact, rel=1e-5)
    assert math.isnan(still.curvature)
    assert math.isnan(still.stability)
    with pytest.raises(ArgumentError, match=r"learning_rate=0 .* positive"):
        curvature_along(operator, update, learning_rate=0)


def test_loss_and_gradient_together_are_exact_on_a_cubic_loss():
    problem = Polynomial(cubic=0.5)
    loss, gradient, hessian, update = step(problem, 0.05)
    exact = (update @ hessian @ update).item()
    third = 6 * 0.5 * (update**3).sum().item()
    found = {
        method: directional_curvature(
            problem.loss, problem.parameters, update, loss=loss, gradient=gradient, method=method
        ).quadratic_form
        for method in METHODS
    }
    assert found["loss_and_gradient"] == pytest.approx(exact, rel=1e-10)
    assert found["loss"] - exact == pytest.approx(third / 3, rel=1e-8)
    assert found["gradient"] - exact == pytest.approx(third / 2, rel=1e-8)


@pytest.mark.parametrize(("rate", "rises"), [(0.9, False), (1.1, True)])
def test_stability_above_one_says_that_the_step_raised_the_loss(rate, rises):
    problem = Polynomial()
    before, gradient, hessian, _ = step(problem, 0.0)
    critical = 2 * (gradient @ gradient / (gradient @ hessian @ gradient)).item()
    loss, gradient, _, update = step(problem, rate * critical)
    figures = directional_curvature(problem.loss, problem.parameters, update, loss=loss, gradient=gradient)
    assert figures.stability == pytest.approx(rate, rel=1e-10)
    assert (problem.loss().item() > before.item()) is rises
    assert figures.critical_sharpness is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_near_the_hessian_along_a_real_step_of_a_net(method, optimizer):
    model, inputs, loss_of = classifier()
    hessian = full_hessian(model, inputs, loss_of)
    layout, closure = ParameterLayout(named(model)), lambda: loss_of(model(inputs))
    loss, gradient = loss_and_gradient(closure, layout)
    before = layout.values()
    step = optimizer(model.parameters(), lr=1e-3)
    closure().backward()
    step.step()
    update = layout.values() - before
    figures = directional_curvature(
        closure, named(model), update, loss=loss, gradient=gradient, learning_rate=1e-3, method=method
    )
    check(figures, update, gradient, hessian, 1e-3, 0.02)
    assert figures.curvature <= torch.linalg.eigvalsh(hessian)[-1].item()


@pytest.mark.parametrize("method", METHODS)
def test_uneven_batches_are_weighted(method):
    problem = Polynomial()
    other = Polynomial()
    other.weight = problem.weight
    other.matrix = 2 * problem.matrix
    closures, samples = [problem.loss, other.loss], [3, 1]
    loss, gradient = loss_and_gradient(closures, problem.layout, samples=samples)
    update = torch.linspace(0, 0.1, 8, dtype=torch.float64)
    problem.weight.data.add_(update)
    figures = directional_curvature(
        closures, problem.parameters, update, loss=loss, gradient=gradient, method=method, samples=samples
    )
    assert figures.quadratic_form == pytest.approx((update @ problem.matrix @ update).item() * 5 / 4, rel=1e-10)


def test_an_update_of_zeros_has_no_curvature():
    problem = Polynomial()
    loss, gradient = loss_and_gradient(problem.loss, problem.layout)
    figures = directional_curvature(problem.loss, problem.parameters, torch.zeros(8), loss=loss, gradient=gradient)
    assert figures.quadratic_form == 0
    assert math.isnan(figures.curvature)
    assert math.isnan(figures.stability)


class TestRefuses:
    def call(self, problem=None, **changes):
        problem = problem or Polynomial()
        loss, gradient = torch.ones(()), torch.ones(8)
        arguments = {"loss": loss, "gradient": gradient, **changes}
        return directional_curvature(
            problem.loss, problem.parameters, arguments.pop("update", torch.ones(8)), **arguments
        )

    def test_a_loss_that_is_nan(self):  # D11
        with pytest.raises(UnsupportedRunError, match="not finite before or after"):
            self.call(loss=torch.tensor(torch.nan))

    def test_arguments_without_meaning(self):
        with pytest.raises(ArgumentError, match="method='hessian'"):
            self.call(method="hessian")
        with pytest.raises(ArgumentError, match="learning_rate=0"):
            self.call(learning_rate=0)
        with pytest.raises(ArgumentError, match="update has the shape"):
            self.call(update=torch.ones(3))
        with pytest.raises(ArgumentError, match="gradient has the shape"):
            self.call(gradient=torch.ones(3))
