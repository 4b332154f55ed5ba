"""GELU whose normal distribution has a mean and a standard deviation of its own."""

import torch
from torch import Tensor

from lit_gelu.activations.functional._arguments import check_order, check_positive, elementwise, largest, per_channel
from lit_gelu.activations.functional._gates import (
    NORMAL_LIMIT,
    normal_cdf_plus_density,
    opened_normal_gate,
    times_normal_density,
)


@elementwise
def gaussian_gelu(x: Tensor, mu: float | Tensor = 0.0, sigma: float | Tensor = 1.0, channel_dim: int = 1) -> Tensor:
    """``x`` times the probability that a normal variable with mean ``mu`` and deviation ``sigma`` is below ``x``.

    ``f(x) = x Phi(u)`` with ``u = (x - mu) / sigma``. ``sigma -> 0`` approaches ``x`` above ``mu`` and 0 below it: ReLU
    for ``mu = 0``.

    Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 2.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        mu: A number, a tensor with one element, or one of shape ``(channels,)``.
        sigma: The same, positive. A number is checked; a tensor is not, because that would wait for the device.
        channel_dim: Which dimension of ``x`` the channels are.

    Returns:
        A tensor like ``x``. ``f(inf) = inf`` and ``f(-inf) = 0``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor, ``sigma`` not positive, or a shape does not fit.

    Example:
        >>> import torch
        >>> gaussian_gelu(torch.tensor([-1.0, 0.0, 1.0]), mu=0.5, sigma=2.0)
        tensor([-0.2266,  0.0000,  0.5987])
        >>> gaussian_gelu(torch.tensor([-1.0, 0.0, 1.0]), sigma=1e-30)
        tensor([-0., 0., 1.])
    """
    mu, sigma = _parameters("gaussian_gelu", x, mu, sigma, channel_dim)
    return opened_normal_gate(x, _quotient(x - mu, sigma))


@elementwise
def gaussian_gelu_derivative(
    x: Tensor, order: int = 1, mu: float | Tensor = 0.0, sigma: float | Tensor = 1.0, channel_dim: int = 1
) -> Tensor:
    """First or second derivative of `gaussian_gelu` with respect to ``x``.

    With ``u = (x - mu) / sigma`` and ``v = x / sigma``: ``f' = Phi(u) + v phi(u)``, ``f'' = phi(u) (2 - u v) / sigma``.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.
        mu: A number, a tensor with one element, or one of shape ``(channels,)``.
        sigma: The same, positive.
        channel_dim: Which dimension of ``x`` the channels are.

    Returns:
        A tensor like ``x``. ``f'(inf) = 1``, ``f'(-inf) = 0`` and ``f''(+-inf) = 0``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor, ``order`` neither 1 nor 2, ``sigma`` not
            positive, or a shape does not fit.

    Example:
        >>> import torch
        >>> gaussian_gelu_derivative(torch.tensor([-1.0, 0.0, 1.0]), mu=0.5, sigma=2.0)
        tensor([0.0761, 0.4013, 0.7920])
    """
    check_order("gaussian_gelu_derivative", order)
    mu, sigma = _parameters("gaussian_gelu_derivative", x, mu, sigma, channel_dim)
    u = _quotient(x - mu, sigma).clamp(-NORMAL_LIMIT, NORMAL_LIMIT)
    v = _quotient(x, sigma)
    if order == 1:
        return normal_cdf_plus_density(v, u)
    return times_normal_density(_quotient(2.0 - _bounded(u * v), sigma), u)


def _parameters(
    name: str, x: Tensor, mu: float | Tensor, sigma: float | Tensor, channel_dim: int
) -> tuple[float | Tensor, float | Tensor]:
    """Return both parameters, shaped; ``sigma`` is kept above 0, so that one that reaches 0 gives the limit."""
    check_positive(name, "sigma", sigma)
    smallest = torch.finfo(x.dtype).tiny
    sigma = per_channel(name, "sigma", sigma, x, channel_dim)
    above_zero = sigma.clamp(min=smallest) if isinstance(sigma, Tensor) else max(sigma, smallest)
    return per_channel(name, "mu", mu, x, channel_dim), above_zero


def _bounded(value: Tensor) -> Tensor:
    """Return ``value`` without infinities: what it is multiplied by may be 0."""
    return value.clamp(-largest(value), largest(value))


def _quotient(numerator: Tensor, sigma: float | Tensor) -> Tensor:
    """Return ``numerator / sigma``, bounded; both ends lie far outside the gate's limits."""
    return _bounded(_bounded(numerator) / sigma)
