"""The "Laplace" attention function of Mega, which is a normal distribution function."""

from torch import Tensor

from lit_gelu.activations.functional._arguments import check_order, check_positive, elementwise
from lit_gelu.activations.functional._gates import NORMAL_LIMIT, times_normal_cdf, times_normal_density


@elementwise
def mega_laplace(x: Tensor, mu: float = 0.707107, sigma: float = 0.282095) -> Tensor:
    """Normal distribution function: ``f(x) = Phi((x - mu) / sigma)``, called "Laplace" by its authors.

    A bounded stand-in for ``relu2`` in attention: ``mu = sqrt(1/2)`` and ``sigma = sqrt(1/(4 pi))``, rounded to six
    digits, make value and slope agree with ``x**2`` at ``x = sqrt(1/2)``. It is no linear unit: it does not multiply by
    ``x``, and its distribution is the normal one.

    Source: Ma et al. 2022, "Mega: Moving Average Equipped Gated Attention" (arXiv 2209.10655); the same as
    transformers' ``laplace``.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        mu: Mean.
        sigma: Standard deviation, positive.

    Returns:
        A tensor like ``x``. ``f(inf) = 1`` and ``f(-inf) = 0``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``sigma`` not positive.

    Example:
        >>> import torch
        >>> mega_laplace(torch.tensor([0.0, 0.707107, 1.0]))
        tensor([0.0061, 0.5000, 0.8504])
    """
    check_positive("mega_laplace", "sigma", sigma)
    return times_normal_cdf(x.new_ones(()), _standardised(x, mu, sigma))


@elementwise
def mega_laplace_derivative(x: Tensor, order: int = 1, mu: float = 0.707107, sigma: float = 0.282095) -> Tensor:
    """First or second derivative of `mega_laplace`: ``phi(u) / sigma`` and ``-u phi(u) / sigma**2``.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.
        mu: Mean.
        sigma: Standard deviation, positive.

    Returns:
        A tensor like ``x``, with ``u = (x - mu) / sigma``; 0 at both infinities.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor, ``order`` neither 1 nor 2, or ``sigma`` not
            positive.

    Example:
        >>> import torch
        >>> mega_laplace_derivative(torch.tensor([0.0, 0.707107, 1.0]))
        tensor([0.0611, 1.4142, 0.8249])
    """
    check_order("mega_laplace_derivative", order)
    check_positive("mega_laplace_derivative", "sigma", sigma)
    u = _standardised(x, mu, sigma)
    if order == 2:
        return times_normal_density(-u / sigma / sigma, u)
    return times_normal_density(x.new_full((), 1.0 / sigma), u)


def _standardised(x: Tensor, mu: float, sigma: float) -> Tensor:
    """Return ``(x - mu) / sigma`` within the limits of the gate."""
    return ((x - mu) / sigma).clamp(-NORMAL_LIMIT, NORMAL_LIMIT)
