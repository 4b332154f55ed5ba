"""The "Laplace" attention function of Mega."""

import math

import torch
from torch import Tensor, nn

from lit_gelu.activations.modules.channels import positive_number


class MegaLaplace(nn.Module):
    """``f(x) = Phi((x - mu) / sigma)``, elementwise, any shape and floating dtype.

    Source: Ma et al. 2022, "Mega: Moving Average Equipped Gated Attention" (arXiv 2209.10655).

    Args:
        mu: Mean.
        sigma: Standard deviation; positive.

    Raises:
        ActivationArgumentError: If ``sigma`` is not a positive finite number.

    Example:
        >>> import torch
        >>> MegaLaplace()(torch.tensor([0.0, 1.0]))
        tensor([0.0061, 0.8504])
    """

    def __init__(self, mu: float = 0.707107, sigma: float = 0.282095) -> None:
        super().__init__()
        self.mu = float(mu)
        self.sigma = positive_number("sigma", sigma)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        return 0.5 * torch.erfc((self.mu - x) / (self.sigma * math.sqrt(2.0)))

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            ``mu=..., sigma=...``.
        """
        return f"mu={self.mu}, sigma={self.sigma}"
