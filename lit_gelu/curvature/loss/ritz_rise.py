"""How far an end of the spectrum lies beyond the Ritz value that Lanczos iteration has found for it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_gelu.curvature.loss.lanczos import tridiagonal_eigen

_LARGEST_RESIDUAL = 0.15
"""In units of the value. With a larger residual the Ritz values found so far say little about the spectrum."""

_MARGIN = 0.1
"""By how much of their range, zero included, the spectrum is taken to go beyond the Ritz values at the other end."""


def rise_by_radau(values: Tensor, couplings: Tensor, number: int) -> float:
    r"""Estimate the distance of an extreme eigenvalue from its Ritz value, by a Gauss-Radau rule.

    k products, and what remains after the last one, fix the moments of the start vector up to order 2k. The Ritz values
    use all but the last. With a node a beyond the other end of the spectrum that one is used, too: the largest value
    rises from theta_k to the largest eigenvalue of

    .. math::
        \begin{pmatrix} \mathrm{diag}(\theta) & r \\ r' & a + \sum_i r_i^2 / (\theta_i - a) \end{pmatrix}.

    As long as a lies below the whole spectrum, this is at most the matrix's largest eigenvalue. Where that end is not
    known, a is taken below the Ritz values and zero, by a tenth of their range.

    Source: Golub and Meurant 2010, "Matrices, Moments and Quadrature with Applications", section 6.2.

    Args:
        values: Ritz values theta in rising order, shape ``[k]``, float64 on the host.
        couplings: r, the coupling of each Ritz vector to what remains (its residual, with a sign), shape ``[k]``.
        number: 0 for the smallest value, -1 for the largest.

    Returns:
        The distance, at least 0.

    Example:
        >>> # The matrix diag(1, 0) from (0.6, 0.8): the value is 0.36, its residual 0.48, and the eigenvalue 1.
        >>> round(0.36 + rise_by_radau(torch.tensor([0.36]).double(), torch.tensor([0.48]).double(), -1), 2)
        0.94
    """
    if number == 0:  # the smallest is the largest of the negative matrix
        values, couplings = -values.flip(0), couplings.flip(0)
    low, high = min(float(values[0]), 0.0), max(float(values[-1]), 0.0)
    node = low - _MARGIN * (high - low)
    if node >= float(values[0]):  # all values are zero
        return abs(float(couplings[-1]))
    corner = node + (couplings.square() / (values - node)).sum()
    arrow = torch.diag(torch.cat([values, corner.reshape(1)]))
    arrow[-1, :-1] = arrow[:-1, -1] = couplings
    return max(0.0, float(torch.linalg.eigvalsh(arrow)[-1] - values[-1]))


def rise_by_gap(values: Tensor, couplings: Tensor, number: int) -> float:
    """Estimate the same by ``min(r, r^2 / g)``, with the distance g to the nearest other Ritz value.

    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", chapter 11.

    Args:
        values: As in `rise_by_radau`.
        couplings: Likewise.
        number: Likewise.

    Returns:
        The distance, at least 0.

    Example:
        >>> rise_by_gap(torch.tensor([0.0, 2.0]), torch.tensor([0.7, 0.5]), -1)
        0.125
    """
    residual = abs(float(couplings[number]))
    others = values[1:] if number == 0 else values[:-1]
    gap = float((others - values[number]).abs().min()) if len(others) else 0.0
    return min(residual, residual**2 / gap) if gap > 0 else residual


def are_accurate(alphas: Tensor, betas: Tensor, numbers: Sequence[int], accuracy: float) -> bool:
    """Return whether some extreme eigenvalues are estimated to be near their Ritz values.

    Args:
        alphas: As in `lit_gelu.curvature.loss.lanczos.LanczosRun`.
        betas: Likewise.
        numbers: 0 for the smallest, -1 for the largest.
        accuracy: How large `rise_by_radau` may be, in units of the value.

    Returns:
        Whether all are.

    Example:
        >>> alphas, betas = torch.tensor([2.0, 0.5]), torch.tensor([0.1, 0.01])
        >>> are_accurate(alphas[:1], betas[:1], [-1], 1e-3), are_accurate(alphas, betas, [-1], 1e-3)
        (False, True)
    """
    values, vectors = tridiagonal_eigen(alphas, betas)
    if len(values) < len(numbers):
        return False
    couplings = float(betas[-1]) * vectors[-1]
    for number in numbers:
        size, residual = abs(float(values[number])), abs(float(couplings[number]))
        if rise_by_radau(values, couplings, number) > accuracy * size:
            return False
        if residual > max(_LARGEST_RESIDUAL, accuracy) * size:
            return False
    return True
