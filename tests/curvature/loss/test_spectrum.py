"""Extreme eigenvalues against scipy and dense solvers; the density against what makes it a Gauss quadrature."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from loss_nets import classifier, full_hessian, named, symmetric
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import eigsh

from lit_gelu.curvature.loss import MatrixOperator, extreme_eigenvalues, hessian_operator, spectral_density
from lit_gelu.curvature.loss.linear_operator import rademacher
from lit_gelu.curvature.loss.spectrum import lanczos, rise_by_radau, tridiagonal_eigen
from lit_gelu.errors import ArgumentError, UnsupportedRunError


def extreme(*arguments, **options):
    (pair,) = extreme_eigenvalues(*arguments, **options)
    return pair


def ritz_values(matrix, steps, start=None):
    """All Ritz values of an iteration, the largest first."""
    run = lanczos(MatrixOperator(matrix), torch.zeros_like(matrix[0]) if start is None else start, steps)
    return tridiagonal_eigen(run.alphas, run.betas)[0].flip(0).tolist()


class Counted(MatrixOperator):
    calls = 0

    def __call__(self, vector):
        self.calls += 1
        return super().__call__(vector)


def with_eigenvalues(values, seed=0):
    values = torch.as_tensor(values, dtype=torch.float64)
    random = torch.randn(len(values), len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis = torch.linalg.qr(random)[0]
    return basis @ torch.diag(values) @ basis.T, basis


@pytest.mark.parametrize("activation", ["gelu", "silu", "mish", "hard_swish"])
def test_equal_scipy_and_the_dense_solver_on_a_net(activation):
    model, inputs, loss = classifier(activation)
    hessian = full_hessian(model, inputs, loss)
    values = torch.linalg.eigvalsh(hessian)
    operator = hessian_operator(lambda: loss(model(inputs)), named(model))
    largest, smallest = extreme_eigenvalues(operator, steps=40, which="both")
    assert largest.value == pytest.approx(values[-1].item(), rel=1e-6)
    assert smallest.value == pytest.approx(values[0].item(), rel=1e-6)
    assert largest.converged
    scipy_operator = ScipyOperator(hessian.shape, matvec=lambda v: operator(torch.from_numpy(v)).numpy(), dtype=float)
    start = np.ones(len(hessian))
    by_scipy = eigsh(scipy_operator, k=1, which="LA", return_eigenvectors=False, v0=start)
    assert largest.value == pytest.approx(by_scipy[0], rel=1e-6)


def test_the_largest_is_returned_though_the_smallest_is_larger_in_magnitude():  # D4
    matrix, _ = with_eigenvalues([-5.0, -4.9, *torch.linspace(-1, 1, 40).tolist(), 2.0])
    operator = MatrixOperator(matrix)
    assert extreme(operator, steps=43).value == pytest.approx(2.0, rel=1e-9)
    assert extreme(operator, steps=43, which="smallest").value == pytest.approx(-5.0, rel=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_exactly_as_many_products_as_steps(steps):  # D5
    operator = Counted(symmetric(30))
    pair = extreme(operator, steps=steps)
    assert operator.calls == pair.products == steps


@pytest.mark.parametrize("steps", [2, 5, 12, 30])
def test_residual_and_image_are_those_of_the_matrix(steps):
    matrix = symmetric(30)
    largest, smallest = extreme_eigenvalues(MatrixOperator(matrix), steps=steps, which="both")
    for pair in (largest, smallest):
        assert pair.vector.norm().item() == pytest.approx(1, abs=1e-12)
        torch.testing.assert_close(pair.image, matrix @ pair.vector, rtol=0, atol=1e-12)
        true_residual = (matrix @ pair.vector - pair.value * pair.vector).norm().item()
        assert pair.residual == pytest.approx(true_residual, rel=1e-6, abs=1e-12)
        nearest = (torch.linalg.eigvalsh(matrix) - pair.value).abs().min().item()
        assert nearest <= pair.residual + 1e-12
    assert abs((largest.vector @ smallest.vector).item()) < 1e-12


def test_started_from_the_last_vectors_one_or_two_products_are_enough():
    matrix, _ = with_eigenvalues([-2.0, *torch.linspace(-0.5, 1, 60).tolist(), 4.0])
    largest, smallest = extreme_eigenvalues(MatrixOperator(matrix), steps=40, which="both")
    moved = MatrixOperator(matrix + 0.02 * symmetric(62, seed=3))
    exact = torch.linalg.eigvalsh(moved.matrix)
    warm = extreme(moved, start=largest.vector, steps=2)
    assert warm.value == pytest.approx(exact[-1].item(), rel=1e-3)
    assert warm.converged is (warm.residual <= 0.01 * warm.value)
    assert abs(extreme(moved, steps=2, seed=1).value - exact[-1].item()) > 0.1
    both = torch.stack([largest.vector, 7 * smallest.vector])
    warm_largest, warm_smallest = extreme_eigenvalues(moved, start=both, steps=3, which="both")
    assert warm_largest.value == pytest.approx(exact[-1].item(), rel=1e-2)
    assert warm_smallest.value == pytest.approx(exact[0].item(), rel=1e-2)


def test_directions_to_start_from_do_not_cancel():
    matrix, basis = with_eigenvalues([-2.0, *torch.linspace(-0.5, 1, 60).tolist(), 4.0])
    top, other = basis[:, -1], basis[:, 5]
    nearly_opposite = torch.stack([top, -3 * (top + 0.02 * other)])
    assert extreme(MatrixOperator(matrix), start=nearly_opposite, steps=1).value > 3.99
    with_nothing = torch.stack([torch.zeros_like(top), top])
    assert extreme(MatrixOperator(matrix), start=with_nothing, steps=1).value == pytest.approx(4.0)


class TestAccuracy:
    @pytest.mark.parametrize("accuracy", [0.1, 0.01, 1e-6])
    def test_ends_once_the_value_is_as_good_as_asked_for(self, accuracy):
        matrix, basis = with_eigenvalues([-2.0, *torch.linspace(-0.5, 1, 60).tolist(), 3.0, 4.0])
        operator = Counted(matrix)
        start = basis[:, -1] + 0.05 * basis.sum(1)
        pair = extreme(operator, start=start, steps=40, accuracy=accuracy)
        assert pair.value == pytest.approx(4.0, rel=accuracy)
        assert pair.products == operator.calls < 40

    def test_decisions_rest_on_what_all_ranks_agree_on(self):
        class Shared(MatrixOperator):
            seen = 0

            def agreed(self, numbers):
                self.seen += 1
                return numbers

        operator = Shared(symmetric(30))
        pair = extreme(operator, steps=9, accuracy=1e-30)
        assert operator.seen >= pair.products == 9

    def test_refuses_nan(self):
        with pytest.raises(UnsupportedRunError):
            extreme(MatrixOperator(symmetric(5) * torch.nan), accuracy=0.1)


class TestInvariantSubspaces:
    @pytest.mark.parametrize("value", [0.0, -3.0, 1e-30, 1e20])
    def test_multiples_of_the_identity(self, value):
        matrix = value * torch.eye(12, dtype=torch.float64)
        assert ritz_values(matrix, 8) == pytest.approx([value] * 8, rel=1e-12)

    def test_copies_of_a_multiple_eigenvalue_are_found(self):
        matrix, _ = with_eigenvalues([5.0, 5.0, 5.0, 1.0, 1.0, 1.0, 1.0, 0.0])
        assert ritz_values(matrix, 8)[:4] == pytest.approx([5.0, 5.0, 5.0, 1.0], abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_basis_stays_orthonormal_over_many_steps(dtype):
    # Outliers converge after a few steps; without reorthogonalisation copies of them would appear.
    matrix, _ = with_eigenvalues([*torch.linspace(-1, 1, 197).tolist(), 50.0, 80.0, 100.0])
    run = lanczos(MatrixOperator(matrix.to(dtype)), torch.ones(200, dtype=dtype), 120)
    vectors = torch.stack(run.basis[:120])
    gram = (vectors @ vectors.T).double()
    assert (gram - torch.eye(120)).abs().max() < 100 * torch.finfo(dtype).eps
    values = ritz_values(matrix.to(dtype), 120)
    assert values[:3] == pytest.approx([100, 80, 50], rel=1e-5)
    assert values[3] < 1.001


@pytest.mark.parametrize(
    "call",
    [
        lambda operator: extreme(operator, steps=0),
        lambda operator: extreme(operator, which="LM"),
        lambda operator: extreme(operator, start=torch.ones(4)),
        lambda operator: extreme(operator, accuracy=0),
    ],
)
def test_arguments_without_meaning_are_refused(call):
    with pytest.raises(ArgumentError):
        call(MatrixOperator(symmetric(5)))


def krylov(matrix, steps, seed=0):
    """Return an orthonormal basis of the Krylov space, by QR of the powers, in numpy."""
    vectors = [np.random.default_rng(seed).standard_normal(len(matrix))]
    for _ in range(steps - 1):
        vectors.append(matrix @ (vectors[-1] / np.linalg.norm(vectors[-1])))
    return np.linalg.qr(np.stack(vectors, 1))[0]


def ritz(matrix, basis):
    """Return Ritz values, and the couplings of their vectors to the one direction that all residuals have."""
    values, coordinates = np.linalg.eigh(basis.T @ matrix @ basis)
    vectors = basis @ coordinates
    rests = matrix @ vectors - vectors * values
    direction = rests[:, -1] / np.linalg.norm(rests[:, -1])
    np.testing.assert_allclose(np.outer(direction, direction @ rests), rests, atol=1e-8)  # all along one direction
    return torch.from_numpy(values), torch.from_numpy(direction @ rests)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("number", [-1, 0])
def test_radau_equals_the_rayleigh_ritz_value_in_the_shifted_square_roots_space(steps, number):
    # The same quadrature as a pencil: Rayleigh-Ritz for H in (H - a)^(1/2) K has (K'H(H - a)K, K'(H - a)K).
    matrix = symmetric(30).numpy()
    sign = 1 if number else -1
    basis = krylov(matrix, steps)
    values, couplings = ritz(matrix, basis)
    ends = sign * values.numpy()
    node = min(ends.min(), 0) - 0.1 * (max(ends.max(), 0) - min(ends.min(), 0))
    turned = sign * matrix
    shifted = turned - node * np.eye(30)
    expected = scipy.linalg.eigh(basis.T @ turned @ shifted @ basis, basis.T @ shifted @ basis, eigvals_only=True)[-1]
    assert ends.max() + rise_by_radau(values, couplings, number) == pytest.approx(expected, rel=1e-8)


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


def test_all_steps_give_the_eigenvalues():
    matrix = symmetric(12)
    density = spectral_density(MatrixOperator(matrix), steps=100, seed=0)
    torch.testing.assert_close(density.nodes[0], torch.linalg.eigvalsh(matrix), rtol=0, atol=1e-10)


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
