"""Extreme eigenvalues of a symmetric matrix by Lanczos iteration."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, overload

import torch
from torch import Tensor

from lit_gelu.curvature.loss.lanczos import LanczosRun, check_steps, lanczos, start_vector, tridiagonal_eigen
from lit_gelu.curvature.loss.linear_operator import LinearOperator
from lit_gelu.display import Displayed, HtmlTable, readable
from lit_gelu.errors import ArgumentError

_LARGEST_RESIDUAL = 0.15
"""In units of the value. With a larger residual the Ritz values found so far say little about the spectrum."""

_MARGIN = 0.1
"""By how much of their range, zero included, the spectrum is taken to go beyond the Ritz values at the other end."""


def rise_by_radau(values: Tensor, couplings: Tensor, number: int) -> float:
    """Estimate the distance of an extreme eigenvalue from its Ritz value (number 0 or -1), by a Gauss-Radau rule."""
    # values: Ritz values theta in rising order, float64 on the host; couplings: r, the residual of each with a sign.
    # k products, and what remains after the last one, fix the moments of the start vector up to order 2k. The Ritz
    # values use all but the last. With a node a beyond the other end of the spectrum that one is used, too: the largest
    # value rises from theta_k to the largest eigenvalue of [[diag(theta), r], [r', a + sum_i r_i^2 / (theta_i - a)]].
    # As long as a lies below the whole spectrum, this is at most the matrix's largest eigenvalue. Where that end is not
    # known, a is taken below the Ritz values and zero, by a tenth of their range.
    # Source: Golub and Meurant 2010, "Matrices, Moments and Quadrature with Applications", section 6.2.
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
    """Estimate the same by ``min(r, r^2 / g)``, with the distance g to the nearest other Ritz value."""
    # Source: Parlett 1998, "The Symmetric Eigenvalue Problem", chapter 11.
    residual = abs(float(couplings[number]))
    others = values[1:] if number == 0 else values[:-1]
    gap = float((others - values[number]).abs().min()) if len(others) else 0.0
    return min(residual, residual**2 / gap) if gap > 0 else residual


def are_accurate(alphas: Tensor, betas: Tensor, numbers: Sequence[int], accuracy: float) -> bool:
    """Return whether some extreme eigenvalues are estimated to be near their Ritz values."""
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


Which = Literal["largest", "smallest", "magnitude"]


@dataclass(frozen=True, eq=False, repr=False)
class Eigenpair(Displayed):
    """An approximate eigenvalue and its vector.

    Attributes:
        value: The Rayleigh quotient ``v' H v``.
        vector: v, of length 1, shape ``[size]``.
        image: ``H v``, shape ``[size]``, from the recurrence; it costs no product.
        residual: ``||H v - value v||``: an eigenvalue of H lies no farther from ``value`` than this.
        converged: Whether the residual is at most ``tolerance |value|``. It says that this is an eigenpair; that no
            larger eigenvalue was missed is for the start vector and the number of steps to see to.
        products: How many products with H the iteration took, for all its pairs together.
        estimate: The eigenvalue as estimated from all that the products say. At an end of the spectrum it lies beyond
            the value by the smaller of `lit_gelu.curvature.loss.eigenpairs.rise_by_radau` and ``rise_by_gap``, which is
            usually most of the error; elsewhere, and where the residual is 0, it is the value.
    """

    value: float
    vector: Tensor
    image: Tensor
    residual: float
    converged: bool
    products: int
    estimate: float

    def _summary(self) -> str:
        end = "converged" if self.converged else "not converged"
        return f"{self.value:.6g}, residual {self.residual:.2g}, {end} after {self.products} products"

    def _html_table(self) -> HtmlTable:
        shown = ("value", "estimate", "residual", "converged", "products")
        return HtmlTable(("", "value"), [(name, readable(getattr(self, name))) for name in shown], "eigenvalue")


@overload
def extreme_eigenvalues(
    operator: LinearOperator,
    *,
    start: Tensor | None = None,
    steps: int = 16,
    which: Literal["largest", "smallest"] = "largest",
    tolerance: float = 0.01,
    accuracy: float | None = None,
    seed: int = 0,
    event: int = 0,
) -> Eigenpair: ...


@overload
def extreme_eigenvalues(
    operator: LinearOperator,
    *,
    start: Tensor | None = None,
    steps: int = 16,
    which: Literal["both"],
    tolerance: float = 0.01,
    accuracy: float | None = None,
    seed: int = 0,
    event: int = 0,
) -> tuple[Eigenpair, Eigenpair]: ...


def extreme_eigenvalues(
    operator: LinearOperator,
    *,
    start: Tensor | None = None,
    steps: int = 16,
    which: Literal["largest", "smallest", "both"] = "largest",
    tolerance: float = 0.01,
    accuracy: float | None = None,
    seed: int = 0,
    event: int = 0,
) -> Eigenpair | tuple[Eigenpair, Eigenpair]:
    """Return the algebraically largest eigenvalue of a symmetric matrix, the smallest, or both.

    Largest means largest, not largest in magnitude: -5 does not hide 1, as it does in power iteration. Exactly
    ``steps`` products are computed (as many as the matrix has rows, if these are fewer), whatever the tolerance. With
    ``accuracy``, the iteration ends as soon as the value is estimated to be near enough to the eigenvalue, by
    `lit_gelu.curvature.loss.eigenpairs.rise_by_radau`, and the residual is at most 15 % of it.

    The estimate cannot know of an eigenvalue whose vector the start has no share in. Where the start may be the vector
    of another eigenvalue, add a second direction to it. The gradient of a classifier's loss is a good one: the examples
    that it is not sure of make both the gradient and the largest eigenvalue.

    Source: Golub and Van Loan 2013, "Matrix Computations", 4th edition, sections 10.1 and 10.3.

    Args:
        operator: The symmetric matrix.
        start: Where to start, shape ``[size]``, or several vectors ``[k, size]``, whose directions are added up (the
            last largest and smallest eigenvectors, the gradient), each with the sign that agrees with the sum of those
            before it. By default a random vector.
        steps: How many products.
        which: What to return.
        tolerance: How large a residual, in units of ``|value|``, counts as converged.
        accuracy: At which estimated error, in units of ``|value|``, to end before ``steps`` products; ``None`` means
            never.
        seed: Of the random vectors.
        event: Counter that goes with the seed.

    Returns:
        The pair; of ``"both"``, the largest and the smallest.

    Raises:
        ArgumentError: If an argument is not accepted.
        UnsupportedRunError: If a product was NaN or infinite.

    Example:
        >>> from lit_gelu.curvature.loss import MatrixOperator
        >>> matrix = torch.diag(torch.tensor([-5.0, 0.5, 1.0]).double())
        >>> pair = extreme_eigenvalues(MatrixOperator(matrix), steps=3)
        >>> round(pair.value, 9), pair.converged, pair.products
        (1.0, True, 3)
    """
    if which not in {"largest", "smallest", "both"}:
        raise ArgumentError(f"which={which!r} is not accepted. Give 'largest', 'smallest' or 'both'.")
    if accuracy is not None and not accuracy > 0:
        raise ArgumentError(f"accuracy={accuracy} is not accepted. Give a positive share of the value, or None.")
    numbers = {"largest": [-1], "smallest": [0], "both": [-1, 0]}[which]
    check_steps(steps, "steps")
    enough = None if accuracy is None else partial(are_accurate, numbers=numbers, accuracy=accuracy)
    first = start_vector(operator, start, seed, event)
    run = lanczos(operator, first, min(steps, operator.size), enough, seed=seed, event=event)
    pairs = _pairs(run, numbers, tolerance, are_ends=True)
    return (pairs[0], pairs[1]) if which == "both" else pairs[0]


def top_eigenpairs(
    operator: LinearOperator,
    count: int,
    *,
    start: Tensor | None = None,
    steps: int = 32,
    which: Which = "largest",
    tolerance: float = 0.01,
    seed: int = 0,
    event: int = 0,
) -> list[Eigenpair]:
    """Return several extreme eigenvalues of a symmetric matrix, from one Lanczos iteration.

    Args:
        operator: The symmetric matrix.
        count: How many pairs.
        start: As in `extreme_eigenvalues`.
        steps: How many products, at least ``count``; two or three times as many are needed for the last ones to
            converge.
        which: ``"largest"``, ``"smallest"``, or the largest in ``"magnitude"``; in this order they are returned.
        tolerance: As in `extreme_eigenvalues`.
        seed: Of the random vectors.
        event: Counter that goes with the seed.

    Returns:
        The pairs; their vectors are orthonormal.

    Raises:
        ArgumentError: If an argument is not accepted.
        UnsupportedRunError: If a product was NaN or infinite.

    Example:
        >>> from lit_gelu.curvature.loss import MatrixOperator
        >>> matrix = torch.diag(torch.tensor([-5.0, 0.5, 1.0]).double())
        >>> [round(pair.value, 9) for pair in top_eigenpairs(MatrixOperator(matrix), 2, which="magnitude")]
        [-5.0, 1.0]
    """
    if not 1 <= count <= min(steps, operator.size):
        raise ArgumentError(
            f"count={count} is not accepted with steps={steps} on a matrix of {operator.size} rows. Give a count from "
            "1 to the smaller of the two."
        )
    first = start_vector(operator, start, seed, event)
    run = lanczos(operator, first, min(steps, operator.size), seed=seed, event=event)
    values = tridiagonal_eigen(run.alphas, run.betas)[0]
    order = {
        "largest": torch.argsort(values, descending=True),
        "smallest": torch.argsort(values),
        "magnitude": torch.argsort(values.abs(), descending=True),
    }
    if which not in order:
        raise ArgumentError(f"which={which!r} is not accepted. Give 'largest', 'smallest' or 'magnitude'.")
    return _pairs(run, order[which][:count].tolist(), tolerance)


def _pairs(run: LanczosRun, numbers: Sequence[int], tolerance: float, *, are_ends: bool = False) -> list[Eigenpair]:
    """Return some Ritz pairs, with the residuals that the recurrence gives."""
    steps = len(run.alphas)
    values, vectors = tridiagonal_eigen(run.alphas, run.betas)
    last_beta = float(run.betas[-1])
    pairs = []
    for number in numbers:
        value, coordinates = float(values[number]), vectors[:, number].tolist()
        vector = run.combine(coordinates)
        remainder = last_beta * coordinates[-1]
        image = torch.mul(vector, value).add_(run.basis[steps], alpha=remainder)
        residual = abs(remainder)
        estimate = value
        if are_ends:
            ends = values, last_beta * vectors[-1], number
            rise = min(rise_by_radau(*ends), rise_by_gap(*ends))
            estimate += -rise if number == 0 else rise
        converged = residual <= tolerance * abs(value)
        pairs.append(Eigenpair(value, vector, image, residual, converged, steps, estimate))
    return pairs
