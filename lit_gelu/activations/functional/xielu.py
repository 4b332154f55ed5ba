"""xIELU: quadratic on the right, the integral of ELU on the left."""

import torch
from torch import Tensor

from lit_gelu.activations.functional._arguments import check_order, elementwise

Parameter = float | Tensor


@elementwise
def xielu(x: Tensor, alpha_p: Parameter = 0.8, alpha_n: Parameter = 0.8, beta: Parameter = 0.5) -> Tensor:
    """Expanded integral of ELU: ``alpha_p x**2 + beta x`` above 0, ``alpha_n (exp(x) - 1 - x) + beta x`` below.

    Transformers' ``xielu`` puts ``exp(min(x, -1e-6))`` for the exponential, which makes it jump by ``1e-6 alpha_n`` at
    0; this is the paper's function.

    Source: Huang and Schlag 2024, "Deriving Activation Functions Using Integration" (arXiv 2411.13010).

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        alpha_p: Positive: a number or a tensor with one element.
        alpha_n: Above ``beta``: a number or a tensor with one element.
        beta: Slope at 0.

    Returns:
        A tensor like ``x``. ``f(inf) = f(-inf) = inf`` for ``alpha_n > beta``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> import torch
        >>> xielu(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.2057,  0.0000,  1.3000])
    """
    # At 0 the slope of `right` is 0 and that of `left` is 1: there the derivatives are the left piece's.
    right, left = torch.relu(x), torch.where(x > 0, 0.0, x)
    return (alpha_p * right + beta) * right + (alpha_n * torch.expm1(left) + (beta - alpha_n) * left)


@elementwise
def xielu_derivative(
    x: Tensor, order: int = 1, alpha_p: Parameter = 0.8, alpha_n: Parameter = 0.8, beta: Parameter = 0.5
) -> Tensor:
    """First or second derivative of `xielu`.

    ``2 alpha_p x + beta`` and ``2 alpha_p`` above 0; ``alpha_n (exp(x) - 1) + beta`` and ``alpha_n exp(x)`` below.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.
        alpha_p: Positive: a number or a tensor with one element.
        alpha_n: Above ``beta``: a number or a tensor with one element.
        beta: Slope at 0.

    Returns:
        A tensor like ``x``; ``f''(0) = alpha_n``, the value on the left.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> import torch
        >>> xielu_derivative(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.0057,  0.5000,  2.1000])
    """
    check_order("xielu_derivative", order)
    left = torch.where(x > 0, 0.0, x)
    if order == 1:
        return (2.0 * alpha_p) * torch.relu(x) + (alpha_n * torch.expm1(left) + beta)
    return torch.where(x > 0, 2.0 * alpha_p, alpha_n * torch.exp(left))
