"""Critical sharpness against D'HD / g'D on quadratic losses, and against the loss itself elsewhere."""

import math

import pytest
import torch
from loss_nets import classifier, named, symmetric

from lit_gelu.curvature.loss import (
    ParameterLayout,
    critical_sharpness,
    loss_and_gradient,
)
from lit_gelu.errors import ArgumentError, UnsupportedRunError


def quadratic(seed=0, dtype=torch.float64):
    """A quadratic loss: (closure, parameters, gradient, D'HD / g'D along the gradient)."""
    matrix = symmetric(8, seed=seed, shift=4.0)
    weight = torch.linspace(1, 2, 8, dtype=dtype).requires_grad_()

    def closure():
        return weight.double() @ matrix @ weight.double() / 2

    gradient = matrix @ weight.detach().double()
    exact = (gradient @ matrix @ gradient / (gradient @ gradient)).item()
    return closure, {"weight": weight}, gradient, exact


@pytest.mark.parametrize("tolerance", [1 / 16, 1 / 256])
@pytest.mark.parametrize("start", [1e-6, 0.01, 1.0, 300.0])
@pytest.mark.parametrize("seed", range(4))
def test_is_the_curvature_over_the_slope_on_a_quadratic_loss(seed, start, tolerance):
    closure, parameters, gradient, exact = quadratic(seed)
    found = critical_sharpness(closure, parameters, gradient, learning_rate=start, tolerance=tolerance)
    assert found.converged
    assert found.sharpness == pytest.approx(exact, rel=tolerance)
    low, high = found.bracket
    assert low <= 2 / exact < high
    assert high - low <= tolerance * high
    assert found.learning_rate == pytest.approx(2 / found.sharpness, rel=1e-14)


def test_started_from_the_last_result_six_passes_are_enough():
    closure, parameters, gradient, exact = quadratic()
    calls = []

    def counted():
        calls.append(1)
        return closure()

    for drift in (0.9, 1.0, 1.1):
        calls.clear()
        found = critical_sharpness(
            counted, parameters, gradient, learning_rate=drift * 2 / exact, loss=closure().detach()
        )
        # started at the critical rate itself, no trial is clearly below: one more is needed
        assert len(calls) == found.evaluations <= (7 if drift == 1 else 6)
        assert found.converged


def test_the_loss_of_a_net_falls_before_the_critical_rate_and_rises_behind_it():
    model, inputs, loss_of = classifier()
    layout, closure = ParameterLayout(named(model)), lambda: loss_of(model(inputs))
    loss, gradient = loss_and_gradient(closure, layout)
    found = critical_sharpness(closure, named(model), gradient, learning_rate=0.1)
    assert found.converged
    start = layout.values()
    for rate, rises in [(found.bracket[0], False), (found.bracket[1], True)]:
        for p, piece in zip(model.parameters(), layout.split(start - rate * gradient), strict=True):
            p.data.copy_(piece)
        assert (closure() > loss).item() is rises


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_parameters_come_back_bit_by_bit_also_after_an_exception(dtype):
    model, inputs, loss_of = classifier(dtype=dtype)
    before = [(p.clone(), p._version) for p in model.parameters()]
    loss_of(model(inputs)).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    direction = torch.ones(51)
    critical_sharpness(lambda: loss_of(model(inputs)), named(model), direction, learning_rate=0.1)
    calls = []

    def failing():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return loss_of(model(inputs))

    with pytest.raises(KeyboardInterrupt):
        critical_sharpness(failing, named(model), direction, learning_rate=0.1)
    for p, (value, version), gradient in zip(model.parameters(), before, gradients, strict=True):
        assert torch.equal(p, value)
        assert p._version == version
        assert torch.equal(p.grad, gradient)


def test_no_pass_records_a_graph():
    closure, parameters, gradient, _ = quadratic()
    modes = []

    def watched():
        modes.append(torch.is_grad_enabled())
        return closure()

    critical_sharpness(watched, parameters, gradient, learning_rate=0.1)
    assert not any(modes)


def test_a_loss_that_becomes_nan_counts_as_risen():
    weight = torch.tensor([1.0], requires_grad=True)
    closure = lambda: torch.sqrt(weight).sum()  # falls until 0, NaN beyond  # noqa: E731
    found = critical_sharpness(closure, {"weight": weight}, torch.tensor([1.0]), learning_rate=0.3)
    assert found.converged
    assert found.learning_rate == pytest.approx(1.0, rel=1 / 16)


@pytest.mark.parametrize(("slope", "bracket"), [(-1.0, (0.0, 2.0**-9)), (1.0, (2.0**9, math.inf))])
def test_a_loss_that_only_rises_or_only_falls_gives_a_bound(slope, bracket):
    weight = torch.tensor([0.0], requires_grad=True)
    found = critical_sharpness(
        lambda: slope * weight.sum(),
        {"weight": weight},
        torch.tensor([1.0]),
        learning_rate=1.0,
        loss=0.0,
        max_evaluations=10,
    )
    assert not found.converged
    assert found.bracket == bracket
    assert found.learning_rate in bracket
    assert found.evaluations == 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("angle", [1.0, 0.1, 0.0])
def test_a_direction_that_does_not_descend_never_converges(dtype, angle):
    # Where a step is lost in rounding the loss seems to stay, at 1e-9 and below: no critical learning rate.
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=dtype, requires_grad=True)
    uphill = -angle * weight.detach() + torch.tensor([2.0, -1.0, 0.0], dtype=dtype)  # g'D = -14 angle
    for start in (1e-3, 1.0):
        found = critical_sharpness(
            lambda: 1 + weight.square().sum() / 2, {"weight": weight}, uphill, learning_rate=start, max_evaluations=200
        )
        assert not found.converged


@pytest.mark.parametrize("start", [0.5001, 0.99, 1.0, 4.0])
def test_a_start_just_behind_or_before_the_critical_rate_is_no_doubt(start):
    weight = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    found = critical_sharpness(
        lambda: weight.square().sum(), {"weight": weight}, torch.tensor([4.0]).double(), learning_rate=start
    )
    assert found.converged
    assert found.learning_rate == pytest.approx(1.0, rel=1 / 16)


class TestRefuses:
    def test_a_loss_that_is_nan_before_any_step(self):  # D11
        _, parameters, gradient, _ = quadratic()
        with pytest.raises(UnsupportedRunError, match="loss is nan"):
            critical_sharpness(lambda: torch.tensor(torch.nan), parameters, gradient, learning_rate=0.1)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"learning_rate": 0.0},
            {"learning_rate": math.inf},
            {"tolerance": 0.0},
            {"tolerance": 1.0},
            {"max_evaluations": 1},
        ],
    )
    def test_arguments_without_meaning(self, arguments):
        closure, parameters, gradient, _ = quadratic()
        with pytest.raises(ArgumentError, match="not accepted"):
            critical_sharpness(closure, parameters, gradient, **{"learning_rate": 0.1, **arguments})

    def test_directions_and_losses_of_another_shape(self):
        closure, parameters, gradient, _ = quadratic()
        with pytest.raises(ArgumentError, match="direction has the shape"):
            critical_sharpness(closure, parameters, gradient[:3], learning_rate=0.1)
        with pytest.raises(ArgumentError, match="scalar"):
            critical_sharpness(lambda: parameters["weight"], parameters, gradient, learning_rate=0.1)


@pytest.mark.parametrize(("units", "converged"), [(4, False), (16, True)])
@pytest.mark.parametrize("base", [1.0, -3.0, 1000.0])
def test_a_loss_that_falls_by_rounding_alone_has_not_fallen(base, units, converged):
    """A step in a loss by so many units of its precision, up to a rate of 1, and a rise behind it."""
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    fall = units * torch.finfo(torch.float64).eps * abs(base)

    def closure():
        moved = -weight.detach()
        if float(moved) == 0:
            return base + 0 * weight.sum()
        return base + (-fall if float(moved) <= 1 else 1.0) + 0 * weight.sum()

    found = critical_sharpness(closure, {"weight": weight}, torch.ones(1, dtype=torch.float64), learning_rate=0.3)
    assert found.converged == converged
