"""Where an iteration for eigenvalues starts."""

from collections.abc import Callable

import torch
from torch import Tensor

from lit_gelu.curvature.loss.errors import LossCurvatureError
from lit_gelu.curvature.loss.lanczos import random_start
from lit_gelu.curvature.loss.linear_operator import LinearOperator, agreed_on


def start_vector(operator: LinearOperator, start: Tensor | None, seed: int, event: int) -> Tensor:
    """Return the one vector that an iteration starts from.

    Args:
        operator: The matrix.
        start: A vector ``[size]``; several, ``[k, size]``, whose directions are added up, each with the sign that
            agrees with the sum of those before it; or ``None`` for a random one.
        seed: Of the random vector.
        event: Counter that goes with the seed.

    Returns:
        Shape ``[size]``, of any length.

    Raises:
        LossCurvatureError: If the shape is another one.

    Example:
        >>> from lit_gelu.curvature.loss import MatrixOperator
        >>> rows = torch.tensor([[3.0, 0.0, 0.0], [-0.8, 0.6, 0.0]])
        >>> start_vector(MatrixOperator(torch.eye(3)), rows, 0, 0)  # (1, 0, 0) and (0.8, -0.6, 0)
        tensor([ 1.8000, -0.6000,  0.0000])
    """
    if start is None:
        return random_start(operator, seed, event)
    if start.dim() not in {1, 2} or start.shape[-1] != operator.size:
        raise LossCurvatureError(
            f"start has the shape {tuple(start.shape)}. Accepted is [{operator.size}], or [k, {operator.size}] for "
            "several directions to start from."
        )
    rows = start.detach().reshape(-1, operator.size).to(operator.device, operator.dtype)
    if len(rows) == 1:
        return rows[0]
    lengths = rows.norm(dim=1, keepdim=True)
    return _sum_of_directions(torch.div(rows, torch.where(lengths > 0, lengths, 1)), agreed_on(operator))


def _sum_of_directions(units: Tensor, agreed: Callable[[Tensor], Tensor]) -> Tensor:
    """Add up vectors of length 1, an eigenvector being one with either sign: what they share shall not cancel."""
    total = units[0].clone()
    for unit in units[1:]:
        share = agreed(unit.dot(total).reshape(1))
        total.add_(unit * torch.where(share < 0, -1, 1))
    return total
