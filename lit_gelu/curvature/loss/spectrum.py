"""Lanczos iteration on a symmetric matrix: its extreme eigenvalues, and its spectral density."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from lit_gelu.arguments import check_count, check_one_of
from lit_gelu.curvature.loss.linear_operator import LinearOperator, agreed_on, normal, rademacher
from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, UnsupportedRunError

_LARGEST_RESIDUAL = 0.15
"""In units of the value. With a larger residual the Ritz values found so far say little about the spectrum."""

_CONVERGED = 0.01
"""In units of the value: a pair with a smaller residual counts as converged."""

_MARGIN = 0.1
"""By how much of their range, zero included, the spectrum is taken to go beyond the Ritz values at the other end."""


@dataclass(frozen=True, eq=False)
class LanczosRun:
    """The tridiagonal matrix of a Lanczos iteration, and the basis it is expressed in."""

    alphas: Tensor  # its diagonal, shape ``[steps]``, float64 on the host
    betas: Tensor  # its off-diagonal, and last the length of what remains, of the same kind
    # Orthonormal vectors, ``steps + 1`` of shape ``[size]``; the last one is what remains, normalised.
    basis: Sequence[Tensor]


def lanczos(
    operator: LinearOperator,
    start: Tensor,
    steps: int,
    enough: Callable[[Tensor, Tensor], bool] | None = None,
    *,
    seed: int = 0,
    event: int = 0,
) -> LanczosRun:
    """Run ``steps`` steps of Lanczos iteration, a product each, or fewer, until ``enough(alphas, betas)``."""
    # start: any length, zero stands for a random vector; alphas and betas are float64 on the host, which looks at three
    # numbers after each product. Each new vector is orthogonalised against all before it, a second time where the first
    # took away more than it left, so that rounding was amplified. Where they span an invariant subspace, and nothing
    # remains, the iteration goes on with a random vector orthogonal to them, uncoupled (``beta = 0``): every step is
    # spent on something new, and copies of a multiple eigenvalue are found.
    #
    # Memory for the basis is asked for one vector at a time: for a few millions of parameters the C library has it at
    # hand from the last time then, while of one large block every page is new.
    #
    # Source: Golub and Van Loan 2013, "Matrix Computations", 4th edition, section 10.3; Daniel, Gragg, Kaufman and
    # Stewart 1976, "Reorthogonalization and stable algorithms for updating the Gram-Schmidt QR factorization",
    # Mathematics of Computation 30(136), for the criterion.
    agreed = agreed_on(operator)
    unit = torch.finfo(operator.dtype).eps
    first = start.to(operator.device, operator.dtype)
    (length,) = agreed(first.norm().reshape(1)).tolist()
    if length == 0:
        first = random_start(operator, seed, event)
        length = float(first.norm())
    basis = [first / length]
    coefficients = torch.zeros(2, steps, dtype=torch.float64)
    scale = 0.0
    for step in range(steps):
        rest, share = _orthogonalised(operator(basis[step]).to(first), basis)
        alpha, before, length = agreed(torch.stack([share[step], share.norm(), rest.norm()])).tolist()
        scale = max(scale, abs(alpha), length)
        ended = length <= 100 * unit * scale
        if ended:
            rest = random_start(operator, seed, event, number=step + 1)
        if ended or length <= before:
            for _ in range(1 + ended):
                rest, share = _orthogonalised(rest, basis)
            correction, length = agreed(torch.stack([share[step], rest.norm()])).tolist()
            alpha += 0.0 if ended else correction
        coefficients[:, step] = torch.tensor([alpha, 0.0 if ended else length], dtype=torch.float64)
        basis.append(rest.div_(length) if length > 0 else rest)
        if enough is not None and enough(*coefficients[:, : step + 1]):
            break
    alphas, betas = coefficients[:, : step + 1]
    return LanczosRun(alphas, betas, basis)


def _orthogonalised(vector: Tensor, basis: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return a vector less its components along orthonormal ones, as a new vector, and those components."""
    shares = torch.stack([direction.dot(vector) for direction in basis])
    rest = torch.addcmul(vector, basis[0], shares[0], value=-1)  # by a share that stays on the device
    for direction, share in zip(basis[1:], shares[1:], strict=True):
        rest.addcmul_(direction, share, value=-1)
    return rest, shares


def tridiagonal_eigen(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """Diagonalise matrices by diagonals and off-diagonals ``[..., steps]``, in float64 on the host; values rise."""
    alphas, betas = torch.stack([alphas, betas]).cpu().double()
    if not (alphas.isfinite().all() and betas.isfinite().all()):
        raise UnsupportedRunError(
            "A product with the matrix was NaN or infinite, so its spectrum is not known. Look at the loss and at the "
            "types of the parameters: 16-bit second derivatives overflow easily."
        )
    matrix = torch.diag_embed(alphas) + torch.diag_embed(betas[..., :-1], -1)  # eigh reads the lower triangle alone
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def random_start(operator: LinearOperator, seed: int, event: int, number: int = 0) -> Tensor:
    """Return a random vector to start from."""
    return normal(operator.size, seed, event, number, dtype=operator.dtype, device=operator.device)


def start_vector(operator: LinearOperator, start: Tensor | None, seed: int, event: int) -> Tensor:
    """Return the vector ``[size]`` to start from: the one given, the sum of several directions, or a random one."""
    if start is None:
        return random_start(operator, seed, event)
    if start.dim() not in {1, 2} or start.shape[-1] != operator.size:
        raise ArgumentError(
            f"start has the shape {tuple(start.shape)}. Accepted is [{operator.size}], or [k, {operator.size}] for "
            "several directions to start from."
        )
    rows = start.detach().reshape(-1, operator.size).to(operator.device, operator.dtype)
    lengths = rows.norm(dim=1, keepdim=True)
    units = torch.div(rows, torch.where(lengths > 0, lengths, 1))
    total, agreed = units[0].clone(), agreed_on(operator)
    for unit in units[1:]:  # an eigenvector has either sign: what they share shall not cancel
        total.add_(unit * torch.where(agreed(unit.dot(total).reshape(1)) < 0, -1, 1))
    return total


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


@dataclass(frozen=True, eq=False, repr=False)
class Eigenpair(Displayed):
    """An approximate eigenvalue and its vector.

    Attributes:
        value: The Rayleigh quotient ``v' H v``.
        vector: v, of length 1, shape ``[size]``.
        image: ``H v``, shape ``[size]``, from the recurrence; it costs no product.
        residual: ``||H v - value v||``: an eigenvalue of H lies no farther from ``value`` than this.
        converged: Whether the residual is at most 1 % of the value. It says that this is an eigenpair; that no
            larger eigenvalue was missed is for the start vector and the number of steps to see to.
        products: How many products with H the iteration took, for all its pairs together.
        estimate: The eigenvalue as estimated from all that the products say. At an end of the spectrum it lies beyond
            the value by the smaller of `rise_by_radau` and ``rise_by_gap``, usually most of the error.
    """

    value: float
    vector: Tensor
    image: Tensor
    residual: float
    converged: bool
    products: int
    estimate: float


def extreme_eigenvalues(
    operator: LinearOperator,
    *,
    start: Tensor | None = None,
    steps: int = 16,
    which: Literal["largest", "smallest", "both"] = "largest",
    accuracy: float | None = None,
    seed: int = 0,
    event: int = 0,
) -> tuple[Eigenpair, ...]:
    """Return the algebraically largest eigenvalue of a symmetric matrix, the smallest, or both.

    Largest means largest, not largest in magnitude: -5 does not hide 1, as it does in power iteration. Exactly
    ``steps`` products are computed, or one a row. With ``accuracy``, the iteration ends as soon as the value is
    estimated to be near enough to the eigenvalue, by `rise_by_radau`, and the residual is at most 15 % of it. The
    estimate cannot know of an eigenvalue whose vector the start has no share in: where the start may be the vector of
    another one, add a second direction to it, such as the gradient of the loss.

    Source: Golub and Van Loan 2013, "Matrix Computations", 4th edition, sections 10.1 and 10.3.

    Args:
        operator: The symmetric matrix.
        start: Where to start, shape ``[size]``, or several vectors ``[k, size]``, whose directions are added up (the
            last largest and smallest eigenvectors, the gradient), each with the sign that agrees with the sum of those
            before it. By default a random vector.
        steps: How many products.
        which: What to return.
        accuracy: At which estimated error, in units of ``|value|``, to end before ``steps`` products; ``None`` means
            never.
        seed: Of the random vectors.
        event: Counter that goes with the seed.

    Returns:
        One pair; of ``"both"``, the largest and the smallest.

    Raises:
        ArgumentError: If an argument is not accepted.
        UnsupportedRunError: If a product was NaN or infinite.

    Example:
        >>> from lit_gelu.curvature.loss import MatrixOperator
        >>> matrix = torch.diag(torch.tensor([-5.0, 0.5, 1.0]).double())
        >>> (pair,) = extreme_eigenvalues(MatrixOperator(matrix), steps=3)
        >>> round(pair.value, 9), pair.converged, pair.products
        (1.0, True, 3)
    """
    check_one_of(("largest", "smallest", "both"), which=which)
    if accuracy is not None and not accuracy > 0:
        raise ArgumentError(f"accuracy={accuracy} is not accepted. Give a positive share of the value, or None.")
    check_count("steps", steps, 1)
    numbers = {"largest": [-1], "smallest": [0], "both": [-1, 0]}[which]
    enough = None if accuracy is None else partial(are_accurate, numbers=numbers, accuracy=accuracy)
    begin = start_vector(operator, start, seed, event)
    run = lanczos(operator, begin, min(steps, operator.size), enough, seed=seed, event=event)
    values, vectors = tridiagonal_eigen(run.alphas, run.betas)
    couplings = run.betas[-1] * vectors[-1]
    pairs = []
    for number in numbers:
        value, remainder = float(values[number]), float(couplings[number])
        first, *others = vectors[:, number].tolist()
        vector = run.basis[0] * first
        for direction, weight in zip(run.basis[1:], others, strict=False):
            vector.add_(direction, alpha=weight)
        image = torch.mul(vector, value).add_(run.basis[len(values)], alpha=remainder)
        rise = min(rise_by_radau(values, couplings, number), rise_by_gap(values, couplings, number))
        estimate = value + (-rise if number == 0 else rise)
        residual = abs(remainder)
        converged = residual <= _CONVERGED * abs(value)
        pairs.append(Eigenpair(value, vector, image, residual, converged, len(values), estimate))
    return tuple(pairs)


@dataclass(frozen=True, eq=False, repr=False)
class SpectralDensity(Displayed):
    """Where the eigenvalues of a matrix lie, as points with weights, one set a run.

    The weights of a run add up to 1. It is the Gauss quadrature of the spectrum as its start vector v sees it:
    ``sum_i w_i x_i^k = v'H^k v`` exactly, for k up to ``2 steps - 1``, with ``E v'H^k v = tr(H^k) / size``.

    Attributes:
        nodes: The points x, float64 on the host, shape ``[runs, steps]``, rising.
        weights: w, of the same shape.
        size: How many eigenvalues the matrix has.
        products: How many products with the matrix were taken.
    """

    nodes: Tensor
    weights: Tensor
    size: int
    products: int

    def moment(self, order: int) -> float:
        """Return an estimate of ``tr(H^k) / size``, the mean of the k-th powers of the eigenvalues."""
        return float((self.weights * self.nodes**order).sum(1).mean())

    def density(self, grid: Tensor, width: float) -> Tensor:
        """Return a curve over a grid, for a plot: each point is a normal density of standard deviation ``width``."""
        distance = (grid.detach().cpu().double().unsqueeze(-1) - self.nodes.flatten()) / width
        heights = torch.exp(-0.5 * distance.square()) / (width * math.sqrt(2 * math.pi))
        return (heights * self.weights.flatten()).sum(-1) / len(self.nodes)


def spectral_density(
    operator: LinearOperator, *, steps: int, runs: int = 1, seed: int, event: int = 0
) -> SpectralDensity:
    """Return an estimate of the spectral density of a symmetric matrix, by stochastic Lanczos quadrature.

    Each run starts Lanczos iteration at a vector of random signs, scaled to length 1. The eigenvalues of its
    tridiagonal matrix are the nodes, the squared first components of its eigenvectors the weights; the small
    eigenproblem is solved in float64 on the host.

    Source: Golub and Welsch 1969, "Calculation of Gauss quadrature rules"; Ubaru, Chen and Saad 2017, "Fast estimation
    of tr(f(A)) via stochastic Lanczos quadrature"; for Hessians Ghorbani, Krishnan and Xiao 2019 (arXiv 1901.10159).

    Args:
        operator: The symmetric matrix.
        steps: Products of a run, and nodes; 60 to 90 resolve the outliers of a network's Hessian.
        runs: Over how many start vectors to average; their spread is the error.
        seed: Of the run.
        event: Which measurement; seed, event and the number of the run determine its start.

    Raises:
        ArgumentError: If an argument is not accepted.
        UnsupportedRunError: If a product was NaN or infinite.

    Example:
        >>> from lit_gelu.curvature.loss.linear_operator import MatrixOperator
        >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
        >>> density = spectral_density(MatrixOperator(matrix), steps=3, seed=0)
        >>> [round(node, 9) for node in density.nodes[0].tolist()], [round(w, 9) for w in density.weights[0].tolist()]
        ([1.0, 2.0, 4.0], [0.333333333, 0.333333333, 0.333333333])
    """
    check_count("steps", steps, 1)
    check_count("runs", runs, 1)
    steps = min(steps, operator.size)
    coefficients = []
    for number in range(runs):
        start = rademacher(operator.size, seed, event, number, dtype=operator.dtype, device=operator.device)
        run = lanczos(operator, start, steps, seed=seed, event=event)
        coefficients.append(torch.stack([run.alphas, run.betas]))
    alphas, betas = torch.stack(coefficients, 1)
    nodes, vectors = tridiagonal_eigen(alphas, betas)
    return SpectralDensity(nodes, vectors[:, 0, :].square(), operator.size, steps * runs)
