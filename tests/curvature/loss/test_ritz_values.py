"""Estimates of what a Ritz value leaves out, against pencils and spectra that are known."""

import numpy as np
import pytest
import scipy.linalg
import torch
from loss_nets import symmetric

from lit_gelu.curvature.loss.spectrum import are_accurate, rise_by_gap, rise_by_radau


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


def test_by_gap_is_the_second_order_of_perturbation_theory():
    matrix = np.diag([0.0, 1.0, 3.0])
    coupling = 1e-3
    matrix[0, 2] = matrix[2, 0] = coupling  # the block of 1 and 3 has been found, what remains has the value 0
    rise = rise_by_gap(torch.tensor([1.0, 3.0]), torch.tensor([0.0, coupling]), -1)
    assert rise == pytest.approx(coupling**2 / 2)
    assert np.linalg.eigvalsh(matrix)[-1] - 3 <= rise
    assert rise_by_gap(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 0.0]), 0) == pytest.approx(0.125)
    assert rise_by_gap(torch.tensor([3.0, 3.0]), torch.tensor([0.0, 0.5]), -1) == 0.5
    assert rise_by_gap(torch.tensor([2.9, 3.0]), torch.tensor([0.0, 0.5]), -1) == 0.5


@pytest.mark.parametrize("number", [-1, 0])
def test_nothing_remains_of_an_exact_pair(number):
    values = torch.tensor([-2.0, 1.0, 5.0], dtype=torch.float64)
    assert rise_by_radau(values, torch.zeros(3, dtype=torch.float64), number) == pytest.approx(0, abs=1e-12)
    assert rise_by_radau(torch.zeros(2), torch.zeros(2), number) == 0
    assert rise_by_radau(torch.zeros(1), torch.tensor([0.3]), number) == pytest.approx(0.3)


def test_a_large_residual_is_never_accurate():
    # Beside -100 a rise is small in units of the gap, though the residual is as large as the value itself.
    alphas, betas = torch.tensor([1.0, -100.0]).double(), torch.tensor([0.0, 1.0]).double()
    assert are_accurate(alphas, torch.tensor([0.0, 0.0]).double(), [-1], 0.02)
    assert not are_accurate(torch.tensor([1.0]).double(), torch.tensor([0.5]).double(), [-1], 0.02)
    assert not are_accurate(alphas[:1], betas[:1], [-1, 0], 0.02)  # two values need two products
