"""GELU whose values are kept within bounds."""

import torch
from torch import Tensor

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional._arguments import check_order, elementwise, keep_nan
from lit_gelu.activations.functional.gelu import gelu, gelu_derivative


@elementwise
def clipped_gelu(x: Tensor, min: float = -10.0, max: float = 10.0) -> Tensor:  # noqa: A002 - the source's names
    """Exact GELU, clipped: ``f(x) = min(max(x Phi(x), min), max)``.

    Made for quantised inference; with the default bounds it is transformers' ``gelu_10``.

    Source: Wu et al. 2020, "Integer Quantization for Deep Learning Inference" (arXiv 2004.09602).

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        min: Lower bound; without effect below -0.17, GELU's minimum.
        max: Upper bound.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``min`` not below ``max``.

    Example:
        >>> import torch
        >>> clipped_gelu(torch.tensor([-1.0, 1.0, 20.0]))
        tensor([-0.1587,  0.8413, 10.0000])
    """
    _check_bounds("clipped_gelu", min, max)
    value = gelu(x)
    return torch.where(value > max, max, torch.where(value < min, min, value))


@elementwise
def clipped_gelu_derivative(
    x: Tensor,
    order: int = 1,
    min: float = -10.0,  # noqa: A002 - the source's names
    max: float = 10.0,  # noqa: A002
) -> Tensor:
    """First or second derivative of `clipped_gelu`: GELU's where the value is within the bounds, 0 elsewhere.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.
        min: Lower bound.
        max: Upper bound.

    Returns:
        A tensor like ``x``; at a bound itself GELU's.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor, ``order`` neither 1 nor 2, or ``min`` not below
            ``max``.

    Example:
        >>> import torch
        >>> clipped_gelu_derivative(torch.tensor([-1.0, 1.0, 20.0]))
        tensor([-0.0833,  1.0833,  0.0000])
    """
    check_order("clipped_gelu_derivative", order)
    _check_bounds("clipped_gelu_derivative", min, max)
    value = gelu(x)
    return keep_nan(x, torch.where((value >= min) & (value <= max), gelu_derivative(x, order), 0.0))


def _check_bounds(name: str, lower: float, upper: float) -> None:
    """Refuse bounds that leave nothing between them."""
    if not lower < upper:
        raise ActivationArgumentError(f"{name}: min={lower!r}, max={upper!r} is not accepted. Give min below max.")
