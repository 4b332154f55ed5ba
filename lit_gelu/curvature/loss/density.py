"""The spectral density of a symmetric matrix, by stochastic Lanczos quadrature."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.curvature.loss.lanczos import check_steps, lanczos, tridiagonal_eigen
from lit_gelu.curvature.loss.linear_operator import LinearOperator, rademacher
from lit_gelu.display import Displayed, HtmlTable
from lit_gelu.errors import ArgumentError


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
        """Estimate the mean of the k-th powers of the eigenvalues, ``tr(H^k) / size``.

        Args:
            order: k, not negative.

        Returns:
            The mean over the runs; of order 0 exactly 1 up to rounding.

        Raises:
            ArgumentError: If ``order`` is negative.
        """
        if order < 0:
            raise ArgumentError(f"order={order} is not accepted. Give 0 or more.")
        return float((self.weights * self.nodes**order).sum(1).mean())

    def density(self, grid: Tensor, width: float) -> Tensor:
        """Smooth the points into a curve, for a plot: each becomes a normal density.

        Args:
            grid: Where the curve is wanted, any shape.
            width: Standard deviation of the normal densities, in the unit of the eigenvalues.

        Returns:
            The curve, float64, of the grid's shape; its integral is 1.

        Raises:
            ArgumentError: If ``width`` is not positive.
        """
        if not width > 0:
            raise ArgumentError(f"width={width} is not accepted. Give a positive standard deviation.")
        points = grid.detach().cpu().double()
        distance = (points.unsqueeze(-1) - self.nodes.flatten()) / width
        heights = torch.exp(-0.5 * distance.square()) / (width * math.sqrt(2 * math.pi))
        return (heights * self.weights.flatten()).sum(-1) / len(self.nodes)

    def _summary(self) -> str:
        low, high = float(self.nodes.min()), float(self.nodes.max())
        return f"{self.size} eigenvalues from {low:.4g} to {high:.4g}, {self.products} products"

    def _html_table(self) -> HtmlTable:
        rows = [
            (run + 1, float(node), float(weight))
            for run in range(len(self.nodes))
            for node, weight in zip(self.nodes[run], self.weights[run], strict=True)
        ]
        return HtmlTable(("run", "eigenvalue near", "share"), rows, self._summary())


def spectral_density(
    operator: LinearOperator, *, steps: int, runs: int = 1, seed: int, event: int = 0
) -> SpectralDensity:
    """Estimate the spectral density of a symmetric matrix by stochastic Lanczos quadrature.

    Each run starts Lanczos iteration at a vector of random signs, scaled to length 1. The eigenvalues of its
    tridiagonal matrix are the nodes, the squared first components of its eigenvectors the weights; the small
    eigenproblem is solved in float64 on the host.

    Source: Golub and Welsch 1969, "Calculation of Gauss quadrature rules"; Ubaru, Chen and Saad 2017, "Fast estimation
    of tr(f(A)) via stochastic Lanczos quadrature"; for Hessians Ghorbani, Krishnan and Xiao 2019 (arXiv 1901.10159).

    Args:
        operator: The symmetric matrix.
        steps: Products of a run, and nodes; 60 to 90 resolve the outliers of a network's Hessian. At most as many as
            the matrix has rows.
        runs: Over how many start vectors to average; their spread is the error.
        seed: Of the run.
        event: Which measurement; seed, event and the number of the run determine its start.

    Returns:
        Nodes and weights.

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
    check_steps(steps, "steps")
    check_steps(runs, "runs")
    steps = min(steps, operator.size)
    coefficients = []
    for number in range(runs):
        start = rademacher(operator.size, seed, event, number, dtype=operator.dtype, device=operator.device)
        run = lanczos(operator, start, steps, seed=seed, event=event)
        coefficients.append(torch.stack([run.alphas, run.betas]))
    alphas, betas = torch.stack(coefficients, 1)
    nodes, vectors = tridiagonal_eigen(alphas, betas)
    return SpectralDensity(nodes, vectors[:, 0, :].square(), operator.size, steps * runs)
