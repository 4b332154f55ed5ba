"""A symmetric matrix that is known by its products with vectors."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from lit_gelu.curvature.loss.vectors import normal


class LinearOperator(Protocol):
    """A symmetric matrix that is known by its products with vectors."""

    @property
    def size(self) -> int:
        """How many rows and columns the matrix has."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of its vectors."""
        ...

    @property
    def device(self) -> torch.device:
        """Of its vectors."""
        ...

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a vector, both of shape ``[size]``."""
        ...


class MatrixOperator:
    """A matrix in memory as an operator.

    Args:
        matrix: Symmetric, shape ``[size, size]``.

    Example:
        >>> MatrixOperator(torch.eye(2))(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.size = matrix.shape[0]
        self.dtype = matrix.dtype
        self.device = matrix.device

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a vector."""
        return self.matrix @ vector


def agreed_on(operator: LinearOperator) -> Callable[[Tensor], Tensor]:
    """Return what makes numbers the same on all ranks, so that these decide alike; of one rank, the identity."""
    agreed: Callable[[Tensor], Tensor] = getattr(operator, "agreed", lambda numbers: numbers)
    return agreed


def symmetry_error(operator: LinearOperator, *, seed: int = 0) -> float:
    """Return ``|a'Hb - b'Ha| / max(|a'Hb|, |b'Ha|)`` for two random vectors, at the cost of two products.

    Large values betray a closure that is not the same function at every call, as dropout with fresh random numbers:
    then there is no Hessian. Rounding gives about 1e-5 in float32.

    Args:
        operator: The matrix.
        seed: Of the vectors.

    Returns:
        A share; 0 if both forms are 0.

    Example:
        >>> symmetry_error(MatrixOperator(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))) < 1e-5
        True
    """
    a, b = (normal(operator.size, seed, 0, k, dtype=operator.dtype, device=operator.device) for k in range(2))
    forms = torch.stack([a.dot(operator(b)), b.dot(operator(a))]).tolist()
    largest = max(abs(form) for form in forms)
    return abs(forms[0] - forms[1]) / largest if largest else 0.0
