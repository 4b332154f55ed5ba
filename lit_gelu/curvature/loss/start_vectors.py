"""Where an iteration for eigenvalues starts."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.curvature.errors import LossCurvatureError
from lit_gelu.curvature.loss.lanczos import random_start
from lit_gelu.curvature.loss.linear_operator import LinearOperator, agreed_on

_RIDGE = 1e-3
"""What is added to the squared lengths, 1, of the directions: two may be the same."""

_MEMORY = 0.5
"""How much of what earlier events taught is kept at each."""


def start_vector(operator: LinearOperator, start: Tensor | None, seed: int, event: int) -> Tensor:
    """Return the one vector ``[size]``, of any length, that an iteration starts from; of ``None`` a random one."""
    # The directions of several, [k, size], are added up, each with the sign that agrees with the sum before it.
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


@dataclass(frozen=True, eq=False)
class Directions:
    """Vectors that a start is mixed from."""

    vectors: Sequence[Tensor]  # of shape ``[size]``, of any length
    scales: Tensor  # what makes them units with signs that agree with the first, shape ``[k]``
    products: Tensor  # the products of these units, shape ``[k, k]``


def directions_of(vectors: Sequence[Tensor], agreed: Callable[[Tensor], Tensor]) -> Directions:
    """Return vectors with lengths, angles and the signs that agree with the first; ``agreed`` as of `agreed_on`."""
    pairs = list(itertools.combinations_with_replacement(range(len(vectors)), 2))
    found = agreed(torch.stack([vectors[i].dot(vectors[j]) for i, j in pairs]))
    products = found.new_empty(len(vectors), len(vectors))
    for number, (i, j) in enumerate(pairs):
        products[i, j] = products[j, i] = found[number]
    lengths = products.diagonal().sqrt()
    scales = torch.where(lengths > 0, torch.where(products[0] < 0, -1, 1) / lengths, 0)
    return Directions(vectors, scales, products * scales * scales[:, None])


def mixed_start(directions: Directions, mixture: Tensor | None) -> Tensor:
    """Return the mixture of directions that would have been nearest to the last events' eigenvectors; ``[size]``."""
    # How much an eigenvector has in common with the last one, and how much with the gradient, differs from run to run
    # and changes little within one: next to nothing with the last one, where each probe has examples of its own, and
    # most where all have the same. The weights w of the directions d minimise the sum over events of ``|x - sum_i w_i
    # d_i|^2`` with the eigenvectors x that were found, later events counting more.
    weights = directions.scales * _weights(mixture, directions.scales)
    total = directions.vectors[0] * weights[0]
    for weight, vector in zip(weights[1:], directions.vectors[1:], strict=True):
        total.addcmul_(vector, weight)
    return total


def learned_mixture(
    mixture: Tensor | None, directions: Directions, found: Tensor, agreed: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return what `mixed_start` is to know after one more event: normal equations ``[k, k + 1]``, averaged."""
    shares = agreed(torch.stack([vector.dot(found) for vector in directions.vectors])) * directions.scales
    # An eigenvector has no sign of its own: that of the start is taken.
    shares = torch.where(shares.dot(_weights(mixture, directions.scales)) < 0, -shares, shares)
    learned = torch.cat([directions.products, shares[:, None]], 1)
    return learned if mixture is None else torch.lerp(learned, mixture.to(learned), _MEMORY)


def _weights(mixture: Tensor | None, scales: Tensor) -> Tensor:
    """Return the weights of units that solve the normal equations, on the device, without a look from the host."""
    if mixture is None:
        return torch.ones_like(scales)
    matrix, right = mixture[:, :-1].to(scales), mixture[:, -1].to(scales)
    solution: Tensor = torch.linalg.solve_ex(matrix + _RIDGE * torch.eye(len(right)).to(scales), right)[0]
    return solution
