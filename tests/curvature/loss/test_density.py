"""Stochastic Lanczos quadrature against what makes it a Gauss quadrature."""

import math

import pytest
import torch
from loss_nets import classifier, full_hessian, named, symmetric

from lit_gelu.curvature.loss import (
    MatrixOperator,
    hessian_operator,
    rademacher,
    spectral_density,
)
from lit_gelu.errors import ArgumentError, UnsupportedRunError


def start(size, number=0):
    """The start vector of a run, of length 1."""
    return rademacher(size, 0, 0, number, dtype=torch.float64, device="cpu") / math.sqrt(size)


@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_moments_are_exact_up_to_degree_2m_minus_1(steps):
    matrix = symmetric(40)
    matrix /= torch.linalg.eigvalsh(matrix).abs().max()  # powers neither grow nor hide an error
    density = spectral_density(MatrixOperator(matrix), steps=steps, runs=3, seed=0)
    for run in range(3):
        v = start(40, run)
        power = v.clone()
        for degree in range(2 * steps + 1):
            exact = (v @ power).item()
            estimate = (density.weights[run] * density.nodes[run] ** degree).sum().item()
            if degree < 2 * steps:
                assert estimate == pytest.approx(exact, abs=1e-10)
            else:
                assert abs(estimate - exact) > 1e-9  # so the tolerance can tell
            power = matrix @ power


def test_weights_are_shares_and_the_first_moment_is_v_h_v():
    model, inputs, loss = classifier()
    hessian = full_hessian(model, inputs, loss)
    operator = hessian_operator(lambda: loss(model(inputs)), named(model))
    density = spectral_density(operator, steps=20, runs=4, seed=0)
    assert density.weights.dtype == torch.float64  # D3: complex64 weights, also for float64 models
    assert (density.weights >= 0).all()
    torch.testing.assert_close(density.weights.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-12)
    expected = [(start(51, run) @ hessian @ start(51, run)).item() for run in range(4)]
    assert (density.weights * density.nodes).sum(1).tolist() == pytest.approx(expected, abs=1e-12)
    assert density.moment(1) == pytest.approx(sum(expected) / 4, abs=1e-12)
    assert density.products == operator.products == 80


def test_float32_parameters_have_float64_nodes_and_weights():  # D3
    model, inputs, loss = classifier(dtype=torch.float32)
    density = spectral_density(hessian_operator(lambda: loss(model(inputs)), named(model)), steps=10, seed=0)
    assert density.nodes.dtype == density.weights.dtype == torch.float64
    assert density.weights.sum().item() == pytest.approx(1, abs=1e-9)


def test_moments_over_many_runs_are_those_of_the_spectrum():
    matrix = symmetric(25, seed=1)
    density = spectral_density(MatrixOperator(matrix), steps=6, runs=400, seed=3)
    for order in range(4):
        values = (density.weights * density.nodes**order).sum(1)
        exact = torch.linalg.matrix_power(matrix, order).trace().item() / 25
        assert abs(density.moment(order) - exact) <= 3 * values.std().item() / 20 + 1e-12


def test_all_steps_give_the_eigenvalues():
    matrix = symmetric(12)
    density = spectral_density(MatrixOperator(matrix), steps=100, seed=0)
    torch.testing.assert_close(density.nodes[0], torch.linalg.eigvalsh(matrix), rtol=0, atol=1e-10)


def test_after_an_invariant_subspace_further_nodes_have_no_weight():
    matrix = torch.diag(torch.tensor([1.0, 1.0, 3.0, 3.0, 3.0, 3.0], dtype=torch.float64))
    density = spectral_density(MatrixOperator(matrix), steps=6, seed=0)
    for value, share in [(1.0, 2 / 6), (3.0, 4 / 6)]:
        near = (density.nodes - value).abs() < 1e-9
        assert density.weights[near].sum().item() == pytest.approx(share, abs=1e-12)
    assert density.moment(2) == pytest.approx((2 * 1 + 4 * 9) / 6, abs=1e-12)


def test_the_curve_is_a_density_with_the_moments_of_the_points():
    density = spectral_density(MatrixOperator(symmetric(30)), steps=10, runs=5, seed=0)
    width = 0.4
    grid = torch.linspace(-15, 15, 6001, dtype=torch.float64)
    curve = density.density(grid, width)
    step = (grid[1] - grid[0]).item()
    assert (curve.sum() * step).item() == pytest.approx(1, abs=1e-9)
    assert ((curve * grid).sum() * step).item() == pytest.approx(density.moment(1), abs=1e-9)
    assert ((curve * grid**2).sum() * step).item() == pytest.approx(density.moment(2) + width**2, abs=1e-9)


def test_what_has_no_density_is_refused():
    operator = MatrixOperator(symmetric(5))
    with pytest.raises(UnsupportedRunError):
        spectral_density(MatrixOperator(symmetric(5) * torch.nan), steps=3, seed=0)
    for call in (
        lambda: spectral_density(operator, steps=0, seed=0),
        lambda: spectral_density(operator, steps=2, runs=0, seed=0),
    ):
        with pytest.raises(ArgumentError):
            call()
