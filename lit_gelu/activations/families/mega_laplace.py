"""The "Laplace" attention function of Mega, which is a normal distribution function."""

import math

import torch
from torch import Tensor, nn

from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.numerics.arguments import check_positive, elementwise, elementwise_derivative
from lit_gelu.activations.numerics.channels import finite_number
from lit_gelu.activations.numerics.gates import (
    INVERSE_SQRT_TWO_PI,
    NORMAL_LIMIT,
    normal_density_root,
    times_normal_cdf,
    times_normal_density,
)
from lit_gelu.activations.onnx_recipes import OnnxRecipes


@elementwise
def mega_laplace(x: Tensor, mu: float = 0.707107, sigma: float = 0.282095) -> Tensor:
    """Return the normal distribution function: ``f(x) = Phi((x - mu) / sigma)``, called "Laplace" by its authors.

    A bounded stand-in for ``relu2`` in attention: ``mu = sqrt(1/2)`` and ``sigma = sqrt(1/(4 pi))``, rounded to six
    digits, make value and slope agree with ``x**2`` at ``x = sqrt(1/2)``. It is no linear unit: it does not multiply by
    ``x``, and its distribution is the normal one.

    Source: Ma et al. 2022, "Mega: Moving Average Equipped Gated Attention" (arXiv 2209.10655); the same as
    transformers' ``laplace``.

    Args:
        x: Any shape, floating.
        mu: Mean.
        sigma: Standard deviation, positive.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor or ``sigma`` not positive.

    Example:
        >>> mega_laplace(torch.tensor([0.0, 0.707107, 1.0]))
        tensor([0.0061, 0.5000, 0.8504])
    """
    check_positive("mega_laplace", "sigma", sigma)
    return times_normal_cdf(x.new_ones(()), _standardised(x, mu, sigma))


@elementwise_derivative
def mega_laplace_derivative(x: Tensor, order: int = 1, mu: float = 0.707107, sigma: float = 0.282095) -> Tensor:
    """First or second derivative of `mega_laplace`: ``phi(u) / sigma`` and ``-u phi(u) / sigma**2``."""
    check_positive("mega_laplace_derivative", "sigma", sigma)
    u, sigma = _standardised(x, mu, sigma), _above_zero(sigma, x)
    if order == 2:
        # One root of phi(u) before the division: u / sigma^2 alone overflows, also where phi(u) is 0.
        root = normal_density_root(u)
        return (INVERSE_SQRT_TWO_PI * -u * root / sigma / sigma) * root
    return times_normal_density(x.new_full((), 1.0 / sigma), u)


def _standardised(x: Tensor, mu: float, sigma: float) -> Tensor:
    """Return ``(x - mu) / sigma`` within the limits of the gate."""
    return ((x - mu) / _above_zero(sigma, x)).clamp(-NORMAL_LIMIT, NORMAL_LIMIT)


def _above_zero(sigma: float, x: Tensor) -> float:
    """Return ``sigma``, at least the smallest normal number, so that 1 / sigma is a number of x's dtype."""
    return max(sigma, torch.finfo(x.dtype).tiny)


class MegaLaplace(nn.Module):
    """``f(x) = Phi((x - mu) / sigma)``, elementwise, any shape and floating dtype."""

    def __init__(self, mu: float = 0.707107, sigma: float = 0.282095) -> None:
        super().__init__()
        self.mu = float(mu)
        self.sigma = finite_number("sigma", sigma, positive=True)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise."""
        return 0.5 * torch.erfc((self.mu - x) / (self.sigma * math.sqrt(2.0)))

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``."""
        return f"mu={self.mu}, sigma={self.sigma}"


ENTRIES = (
    ActivationEntry(
        "mega_laplace",
        MegaLaplace,
        function=mega_laplace,
        derivative=mega_laplace_derivative,
        facts=ActivationFacts(
            formula="Phi((x - mu) / sigma)",
            reference="Ma et al. 2022, Mega: Moving Average Equipped Gated Attention (arXiv 2209.10655)",
            smoothness=float("inf"),
            asymptotes=("0", "1"),
            gate=True,
        ),
        aliases=("laplace",),
        onnx=OnnxRecipes(native="Mul(Add(Erf(Div(Sub(x, mu), sigma * SQRT_2)), 1.0), 0.5)", absolute=2e-8),
    ),
)
