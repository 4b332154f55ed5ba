"""Lanczos iteration with full reorthogonalisation: the tridiagonal matrix of a symmetric one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.curvature.errors import LossCurvatureError, NonFiniteCurvatureError
from lit_gelu.curvature.loss.linear_operator import LinearOperator, agreed_on
from lit_gelu.curvature.loss.vectors import normal


@dataclass(frozen=True, eq=False)
class LanczosRun:
    """The tridiagonal matrix of a Lanczos iteration, and the basis it is expressed in."""

    alphas: Tensor  # its diagonal, shape ``[steps]``, on the device
    betas: Tensor  # its off-diagonal, and last the length of what remains, shape ``[steps]``, on the device
    # Orthonormal vectors, ``steps + 1`` of shape ``[size]``; the last one is what remains, normalised.
    basis: Sequence[Tensor]

    def combine(self, coordinates: Sequence[float]) -> Tensor:
        """Add up the first vectors of the basis."""
        total = self.basis[0] * coordinates[0]
        for vector, weight in zip(self.basis[1:], coordinates[1:], strict=False):
            total.add_(vector, alpha=weight)
        return total


def lanczos(
    operator: LinearOperator, start: Tensor, steps: int, *, seed: int = 0, event: int = 0, basis: Tensor | None = None
) -> LanczosRun:
    """Run exactly ``steps`` steps of Lanczos iteration, a product each, without a look from the host."""
    # start: any length, zero stands for a random vector; basis: storage [steps + 1, size] to use.
    #
    # Each new vector is orthogonalised twice against all before it. Where these span an invariant subspace, so that
    # nothing remains, the iteration goes on with a random vector orthogonal to them, uncoupled (``beta = 0``): every
    # step is spent on something new, and copies of a multiple eigenvalue are found.
    #
    # Source: Golub and Van Loan 2013, "Matrix Computations", 4th edition, section 10.3.
    if basis is None:
        basis = torch.empty(steps + 1, operator.size, dtype=operator.dtype, device=operator.device)
    alphas, betas = torch.empty(2, steps, dtype=operator.dtype, device=operator.device)
    start = start.to(basis)
    length = start.norm()
    fresh = random_start(operator, seed, event, steps)
    first = torch.where(length > 0, start, fresh[: operator.size])
    torch.div(first, first.norm(), out=basis[0])
    rounding = 100 * torch.finfo(operator.dtype).eps
    scale = alphas.new_zeros(())
    for step in range(steps):
        known = basis[: step + 1]
        rest = operator(basis[step]).to(basis)
        share = known @ rest
        rest = torch.addmv(rest, known.T, share, alpha=-1)
        length = rest.norm()
        scale = torch.maximum(scale, torch.maximum(share[step].abs(), length))
        ended = length <= rounding * scale
        spare = fresh[step + 1 : step + 1 + operator.size]  # shifted, it is another random vector, at no draw
        rest = torch.where(ended, spare, rest)
        correction = known @ rest
        rest = torch.addmv(rest, known.T, correction, alpha=-1)
        length = rest.norm()
        alphas[step] = share[step] + torch.where(ended, 0, correction[step])
        betas[step] = torch.where(ended, 0, length)
        torch.div(rest, torch.where(length > 0, length, 1), out=basis[step + 1])
    return LanczosRun(alphas, betas, basis.unbind())


def lanczos_until(
    operator: LinearOperator,
    start: Tensor,
    steps: int,
    enough: Callable[[Tensor, Tensor], bool],
    *,
    seed: int = 0,
    event: int = 0,
) -> LanczosRun:
    """Run Lanczos iteration, at most ``steps`` steps, until ``enough(alphas, betas)``: float64, on the host."""
    # As `lanczos`, but the host looks at three numbers after each product. Having seen them, it leaves out the second
    # orthogonalisation where the first took away less than it left, so that rounding was not amplified, and draws
    # random vectors only where they are needed. Memory for the basis is asked for one vector at a time: for a few
    # millions of parameters the C library has it at hand from the last time then, while of one large block every page
    # is new, which takes as long as half a product.
    #
    # Source: Daniel, Gragg, Kaufman and Stewart 1976, "Reorthogonalization and stable algorithms for updating the
    # Gram-Schmidt QR factorization", Mathematics of Computation 30(136), for the criterion.
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
        if enough(*coefficients[:, : step + 1]):
            break
    alphas, betas = coefficients[:, : step + 1]
    return LanczosRun(alphas, betas, basis)


def _orthogonalised(vector: Tensor, basis: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return what remains of a vector without its components along orthonormal ones, as a new vector, and these."""
    shares = torch.stack([known.dot(vector) for known in basis])
    rest = torch.addcmul(vector, basis[0], shares[0], value=-1)  # by a share that stays on the device
    for known, share in zip(basis[1:], shares[1:], strict=True):
        rest.addcmul_(known, share, value=-1)
    return rest, shares


def tridiagonal_eigen(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """Diagonalise matrices by diagonals and off-diagonals ``[..., steps]``, in float64 on the host; values rise."""
    alphas, betas = torch.stack([alphas, betas]).cpu().double()
    if not (alphas.isfinite().all() and betas.isfinite().all()):
        raise NonFiniteCurvatureError(
            "A product with the matrix was NaN or infinite, so its spectrum is not known. Look at the loss and at the "
            "types of the parameters: 16-bit second derivatives overflow easily."
        )
    matrix = torch.diag_embed(alphas) + torch.diag_embed(betas[..., :-1], -1)  # eigh reads the lower triangle alone
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def check_steps(steps: int, name: str) -> None:
    """Refuse a count below 1."""
    if steps < 1:
        raise LossCurvatureError(f"{name}={steps} is not accepted. Give a positive number.")


def random_start(operator: LinearOperator, seed: int, event: int, extra: int = 0, number: int = 0) -> Tensor:
    """Return a random vector to start from, longer than the matrix's by ``extra`` elements."""
    return normal(operator.size + extra, seed, event, number, dtype=operator.dtype, device=operator.device)
