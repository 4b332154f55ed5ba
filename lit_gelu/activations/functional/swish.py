"""SiLU and Swish: ``x`` times a logistic gate."""

from torch import Tensor

from lit_gelu.activations.functional._arguments import check_order, elementwise, largest, per_channel
from lit_gelu.activations.functional._gates import (
    LOGISTIC_LIMIT,
    logistic_curvature,
    logistic_plus_density,
    opened_logistic_gate,
)


@elementwise
def silu(x: Tensor) -> Tensor:
    """Sigmoid linear unit: ``f(x) = x s(x)`` with ``s(x) = 1 / (1 + exp(-x))``.

    Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 4; Elfwing et al. 2017 (arXiv 1702.03118).

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor like ``x``. ``f(inf) = inf`` and ``f(-inf) = 0``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> import torch
        >>> silu(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.2689,  0.0000,  0.7311])
    """
    return opened_logistic_gate(x, x)


@elementwise
def silu_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of `silu`: that of `swish` with ``beta = 1``.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``. ``f'(inf) = 1``, ``f'(-inf) = 0`` and ``f''(+-inf) = 0``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> import torch
        >>> x = torch.tensor([-1.0, 0.0, 1.0])
        >>> silu_derivative(x), silu_derivative(x, order=2)
        (tensor([0.0723, 0.5000, 0.9277]), tensor([0.3024, 0.5000, 0.3024]))
    """
    check_order("silu_derivative", order)
    return _derivative(x, order, 1.0)


@elementwise
def swish(x: Tensor, beta: float | Tensor = 1.0, channel_dim: int = 1) -> Tensor:
    """Swish: ``f(x) = x s(beta x)`` with ``s(u) = 1 / (1 + exp(-u))``.

    ``beta = 1`` is SiLU, ``beta = 0`` is ``x / 2``, ``beta -> inf`` approaches ReLU; a negative ``beta`` shuts the
    other side.

    Source: Ramachandran, Zoph and Le 2017, "Searching for Activation Functions" (arXiv 1710.05941), section 4.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        beta: A number, a tensor with one element, or one of shape ``(channels,)``.
        channel_dim: Which dimension of ``x`` the channels are.

    Returns:
        A tensor like ``x``. For positive ``beta``, ``f(inf) = inf`` and ``f(-inf) = 0``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``beta`` does not fit its channels.

    Example:
        >>> import torch
        >>> swish(torch.tensor([-1.0, 0.0, 1.0]), beta=2.0)
        tensor([-0.1192,  0.0000,  0.8808])
    """
    beta = per_channel("swish", "beta", beta, x, channel_dim)
    return opened_logistic_gate(x, beta * x.clamp(-largest(x), largest(x)))


@elementwise
def swish_derivative(x: Tensor, order: int = 1, beta: float | Tensor = 1.0, channel_dim: int = 1) -> Tensor:
    """First or second derivative of `swish` with respect to ``x``.

    With ``u = beta x`` and ``q = s(u) s(-u)``: ``f' = s(u) + u q`` and ``f'' = beta q (2 - u tanh(u / 2))``.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.
        beta: A number, a tensor with one element, or one of shape ``(channels,)``.
        channel_dim: Which dimension of ``x`` the channels are.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor, ``order`` neither 1 nor 2, or ``beta`` does not fit.

    Example:
        >>> import torch
        >>> swish_derivative(torch.tensor([-1.0, 0.0, 1.0]), beta=2.0)
        tensor([-0.0908,  0.5000,  1.0908])
    """
    check_order("swish_derivative", order)
    return _derivative(x, order, per_channel("swish_derivative", "beta", beta, x, channel_dim))


def _derivative(x: Tensor, order: int, beta: float | Tensor) -> Tensor:
    """Return ``f'`` or ``f''`` of swish; ``x`` is in its operation dtype, ``beta`` has been shaped."""
    u = (beta * x.clamp(-largest(x), largest(x))).clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    if order == 1:
        return logistic_plus_density(u, u)
    return logistic_curvature(2.0, u.abs(), u, factor=beta)
