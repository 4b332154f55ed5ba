"""Extreme eigenvalues against scipy's eigsh and numpy's dense solver."""

import numpy as np
import pytest
import scipy.linalg
import torch
from loss_nets import classifier, full_hessian, named, symmetric
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import eigsh

from lit_gelu.curvature.loss import (
    MatrixOperator,
    extreme_eigenvalues,
    hessian_operator,
    normal,
)
from lit_gelu.curvature.loss.spectrum import lanczos, tridiagonal_eigen
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
    largest, smallest = extreme_eigenvalues(operator, steps=40, which="both", tolerance=1e-6)
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


def test_one_step_gives_the_rayleigh_quotient_and_its_residual():  # D5
    matrix = symmetric(30)
    start = normal(30, 5, 0, 0, dtype=torch.float64, device="cpu")
    unit = start / start.norm()
    pair = extreme(MatrixOperator(matrix), start=start, steps=1)
    assert pair.value == pytest.approx((unit @ matrix @ unit).item(), rel=1e-12)
    assert pair.residual == pytest.approx((matrix @ unit - pair.value * unit).norm().item(), rel=1e-12)
    assert not pair.converged


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

    def test_better_values_take_more_products_and_a_perfect_start_takes_one(self):
        matrix, basis = with_eigenvalues([-2.0, *torch.linspace(-0.5, 1, 60).tolist(), 4.0])
        operator = MatrixOperator(matrix)
        counts = [extreme(operator, steps=40, accuracy=a).products for a in (0.1, 1e-3, 1e-9)]
        assert counts == sorted(set(counts))
        assert extreme(operator, start=basis[:, -1], steps=40, accuracy=0.01).products == 1

    def test_a_far_negative_eigenvalue_does_not_pass_for_a_gap_that_makes_the_value_sure(self):
        values = [1.0, 0.9, -20.0, *torch.linspace(-0.1, 0.1, 20).tolist()]
        operator = MatrixOperator(torch.diag(torch.tensor(values, dtype=torch.float64)))
        for seed in range(50):  # with residual^2 / gap alone, two products gave values about 0 for some of them
            start = normal(23, seed, 0, 0, dtype=torch.float64, device="cpu")
            pair = extreme(operator, start=start, steps=20, accuracy=0.02)
            assert pair.value == pytest.approx(1.0, abs=0.15)

    def test_both_ends_wait_for_each_other(self):
        matrix, basis = with_eigenvalues([-2.0, *torch.linspace(-0.5, 1, 60).tolist(), 4.0])
        pairs = extreme_eigenvalues(MatrixOperator(matrix), start=basis[:, -1], steps=40, which="both", accuracy=1e-3)
        assert [pair.value for pair in pairs] == pytest.approx([4.0, -2.0], rel=1e-3)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3, 1.0])
    def test_residual_image_and_basis_are_as_good_as_with_every_orthogonalisation(self, dtype, noise):
        matrix, basis = with_eigenvalues([*torch.linspace(-1, 1, 57).tolist(), 50.0, 80.0, 100.0])
        matrix, start = matrix.to(dtype), (basis[:, -1] + noise * basis.sum(1)).to(dtype)
        run = lanczos(MatrixOperator(matrix), start, 30)
        assert len(run.alphas) == 30
        vectors = torch.stack(run.basis[:30])
        gram = (vectors @ vectors.T).double()
        assert (gram - torch.eye(30)).abs().max() < 100 * torch.finfo(dtype).eps
        pair = extreme(MatrixOperator(matrix), start=start, steps=30, accuracy=1e-30)
        assert pair.value == pytest.approx(100, rel=10 * torch.finfo(dtype).eps)
        torch.testing.assert_close(pair.image, matrix @ pair.vector, rtol=0, atol=1e4 * torch.finfo(dtype).eps)

    def test_zero_matrix_zero_start_and_one_row(self):
        zeros = MatrixOperator(torch.zeros(6, 6))
        assert extreme(zeros, start=torch.zeros(6), steps=6, accuracy=0.01).value == 0
        pair = extreme(MatrixOperator(torch.tensor([[-2.5]])), steps=4, accuracy=0.01)
        assert (pair.value, pair.products) == (-2.5, 1)

    def test_decisions_rest_on_what_all_ranks_agree_on(self):
        class Shared(MatrixOperator):
            seen = 0

            def agreed(self, numbers):
                self.seen += 1
                return numbers

        operator = Shared(symmetric(30))
        pair = extreme(operator, steps=9, accuracy=1e-30)
        assert operator.seen >= pair.products == 9

    def test_refuses_nan_and_an_accuracy_that_is_none(self):
        with pytest.raises(ArgumentError):
            extreme(MatrixOperator(symmetric(5)), accuracy=0)
        with pytest.raises(UnsupportedRunError):
            extreme(MatrixOperator(symmetric(5) * torch.nan), accuracy=0.1)


class TestInvariantSubspaces:
    def test_starting_at_an_eigenvector_does_not_end_the_search(self):
        matrix, basis = with_eigenvalues([1.0, 2.0, 3.0, 4.0])
        pair = extreme(MatrixOperator(matrix), start=basis[:, 0], steps=4)
        assert pair.value == pytest.approx(4.0, rel=1e-10)
        assert pair.residual < 1e-10

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


def test_seeds_decide_the_start():
    operator = MatrixOperator(symmetric(40))
    values = [extreme(operator, steps=3, seed=s, event=e).value for s, e in [(0, 0), (0, 0), (1, 0), (0, 1)]]
    assert values[0] == values[1]
    assert len(set(values)) == 3


def test_eigenvalues_of_one_step_and_of_several_matrices_at_once():
    values, vectors = tridiagonal_eigen(torch.tensor([2.0]), torch.tensor([7.0]))
    assert (values.tolist(), vectors.abs().tolist()) == ([2.0], [[1.0]])
    rng = np.random.default_rng(0)
    alphas, betas = rng.normal(size=(2, 3, 5))
    values, vectors = tridiagonal_eigen(torch.tensor(alphas), torch.tensor(betas))
    for i in range(3):
        wanted = scipy.linalg.eigh_tridiagonal(alphas[i], betas[i, :-1])[0]
        np.testing.assert_allclose(values[i], wanted, rtol=1e-12, atol=1e-12)
        matrix = np.diag(alphas[i]) + np.diag(betas[i, :-1], 1) + np.diag(betas[i, :-1], -1)
        np.testing.assert_allclose(matrix @ vectors[i].numpy(), vectors[i].numpy() * values[i].numpy(), atol=1e-12)


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
