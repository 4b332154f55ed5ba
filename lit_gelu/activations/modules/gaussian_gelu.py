"""GELU with the mean and the standard deviation of its normal distribution as arguments."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional.gaussian_gelu import gaussian_gelu
from lit_gelu.activations.modules.swish import positive_number


class GaussianGELU(nn.Module):
    """``f(x) = x Phi((x - mu) / sigma)``, elementwise, any shape and floating dtype.

    ``mu = 0, sigma = 1`` is GELU; ``sigma -> 0`` with ``mu = 0`` is ReLU. With ``mu = 0`` it is
    ``sigma GELU(x / sigma)``, so torch's kernel is called. Learned parameters: ``mu_0 + mu_offset`` and
    ``sigma_0 exp(log_scale)``, both parameters starting at 0: sigma stays positive and starts at exactly ``sigma_0``.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)" (arXiv 1606.08415), section 2.

    Args:
        mu: Mean of the normal distribution, or its initial value if learned.
        sigma: Its standard deviation, or the initial value; positive.
        learnable: Whether both are learned (two scalars).

    Raises:
        ActivationArgumentError: If ``mu`` is not a finite number or ``sigma`` not a positive one.

    Example:
        >>> import torch
        >>> GaussianGELU(mu=0.5, sigma=2.0)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.2266,  0.0000,  0.5987])
    """

    mu_offset: nn.Parameter | None
    log_scale: nn.Parameter | None

    def __init__(self, mu: float = 0.0, sigma: float = 1.0, learnable: bool = False) -> None:
        super().__init__()
        if isinstance(mu, bool) or not isinstance(mu, (int, float)) or not math.isfinite(mu):
            raise ActivationArgumentError(f"mu={mu!r} is not accepted: give a finite number, such as mu=0.0.")
        self.initial_mu = float(mu)
        self.initial_sigma = positive_number("sigma", sigma)
        self.learnable = bool(learnable)
        self.register_parameter("mu_offset", nn.Parameter(torch.zeros(())) if self.learnable else None)
        self.register_parameter("log_scale", nn.Parameter(torch.zeros(())) if self.learnable else None)

    @property
    def mu(self) -> float | Tensor:
        """The present mean: a number if it is fixed, a scalar tensor if it is learned."""
        return self.initial_mu if self.mu_offset is None else self.initial_mu + self.mu_offset

    @property
    def sigma(self) -> float | Tensor:
        """The present standard deviation: a number if it is fixed, a scalar tensor if it is learned."""
        return self.initial_sigma if self.log_scale is None else self.initial_sigma * torch.exp(self.log_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        if self.learnable or self.initial_mu != 0.0:
            return gaussian_gelu(x, self.mu, self.sigma)
        if self.initial_sigma == 1.0:
            return F.gelu(x)
        return self.initial_sigma * F.gelu(x / self.initial_sigma)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            ``mu=..., sigma=..., learnable=...``.
        """
        return f"mu={self.initial_mu}, sigma={self.initial_sigma}, learnable={self.learnable}"
