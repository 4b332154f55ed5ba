"""Lanczos iteration with full reorthogonalisation: the tridiagonal matrix of a symmetric one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.curvature.loss.linear_operator import LinearOperator, agreed_on, normal
from lit_gelu.errors import ArgumentError, UnsupportedRunError


@dataclass(frozen=True, eq=False)
class LanczosRun:
    """The tridiagonal matrix of a Lanczos iteration, and the basis it is expressed in."""

    alphas: Tensor  # its diagonal, shape ``[steps]``, float64 on the host
    betas: Tensor  # its off-diagonal, and last the length of what remains, of the same kind
    # Orthonormal vectors, ``steps + 1`` of shape ``[size]``; the last one is what remains, normalised.
    basis: Sequence[Tensor]

    def combine(self, coordinates: Sequence[float]) -> Tensor:
        """Add up the first vectors of the basis."""
        total = self.basis[0] * coordinates[0]
        for vector, weight in zip(self.basis[1:], coordinates[1:], strict=False):
            total.add_(vector, alpha=weight)
        return total


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


def check_steps(steps: int, name: str) -> None:
    """Refuse a count below 1."""
    if steps < 1:
        raise ArgumentError(f"{name}={steps} is not accepted. Give a positive number.")


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
