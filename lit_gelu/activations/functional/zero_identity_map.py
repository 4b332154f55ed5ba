"""The stochastic zero-identity map, of which GELU is the expectation."""

import torch
from torch import Tensor

from lit_gelu.activations.functional._arguments import check_order, elementwise
from lit_gelu.activations.functional._gates import normal_cdf
from lit_gelu.activations.functional.gelu import gelu, gelu_derivative


@elementwise
def zero_identity_map(x: Tensor, training: bool = True, generator: torch.Generator | None = None) -> Tensor:
    """Keep each element with probability ``Phi(x)``, else set it to 0; without training, the expectation ``x Phi(x)``.

    In training ``f(x) = m x`` with ``m = 1`` where ``u < Phi(x)``, else 0, and ``u`` uniform on [0, 1). There is no
    division by ``Phi(x)``, and the gradient is ``m`` alone: none flows through the comparison.

    Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 2; as submitted to ICLR 2017, section 4.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        training: Whether to draw, rather than to return the expectation.
        generator: Where the random numbers come from, on the device of ``x``; ``None`` is torch's default.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> zero_identity_map(torch.full((6,), 0.5), generator=generator)
        tensor([0.5000, 0.0000, 0.5000, 0.5000, 0.5000, 0.5000])
        >>> zero_identity_map(torch.tensor([0.5]), training=False)
        tensor([0.3457])
    """
    if not training:
        return gelu(x)
    uniform = torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    kept = uniform < normal_cdf(x.detach())
    # A selection, not a product: 0 * -inf is NaN. NaN compares as false and is passed on.
    return torch.where(kept | torch.isnan(x), x, 0.0)


@elementwise
def zero_identity_map_derivative(x: Tensor, order: int = 1) -> Tensor:
    """First or second derivative of the expectation of `zero_identity_map`: those of exact GELU.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.

    Returns:
        A tensor like ``x``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``order`` neither 1 nor 2.

    Example:
        >>> import torch
        >>> zero_identity_map_derivative(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.0833,  0.5000,  1.0833])
    """
    check_order("zero_identity_map_derivative", order)
    return gelu_derivative(x, order)
