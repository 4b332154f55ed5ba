"""Swish with a fixed or a learned slope."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.errors import ActivationArgumentError


def positive_number(name: str, value: float) -> float:
    """Return ``value`` as a ``float`` if it is a positive finite number.

    Args:
        name: The argument's name, for the message.
        value: What was given.

    Returns:
        The value.

    Raises:
        ActivationArgumentError: If it is not a positive finite number.

    Example:
        >>> positive_number("beta", 2)
        2.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value < math.inf):
        raise ActivationArgumentError(
            f"{name}={value!r} is not accepted: give a positive finite number, such as {name}=1.0."
        )
    return float(value)


def swish(x: Tensor, beta: float | Tensor) -> Tensor:
    """Return ``x sigmoid(beta x)`` by torch's kernels.

    Args:
        x: Any shape, any floating dtype.
        beta: A number, or a tensor that is broadcast with ``x``.

    Returns:
        A tensor like ``x``.
    """
    return x * torch.sigmoid((beta * x).to(x.dtype))


class Swish(nn.Module):
    """``f(x) = x sigmoid(beta x)``, elementwise, any shape and floating dtype.

    ``beta = 1`` is SiLU (torch's kernel is called); ``beta -> 0`` is ``x / 2``, ``beta -> inf`` is ReLU. A learned
    slope is kept positive: ``beta = beta_0 exp(log_scale)`` with the parameter ``log_scale`` starting at 0, so that it
    starts at exactly ``beta_0`` and weight decay pulls it back there.

    Source: Ramachandran, Zoph and Le 2017, "Searching for Activation Functions" (arXiv 1710.05941), section 4.

    Args:
        beta: The slope, or the initial slope if it is learned; positive.
        learnable: Whether the slope is learned (one scalar).

    Raises:
        ActivationArgumentError: If ``beta`` is not a positive finite number.

    Example:
        >>> import torch
        >>> Swish(beta=2.0)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.1192,  0.0000,  0.8808])
    """

    log_scale: nn.Parameter | None

    def __init__(self, beta: float = 1.0, learnable: bool = False) -> None:
        super().__init__()
        self.initial_beta = positive_number("beta", beta)
        self.learnable = bool(learnable)
        self.register_parameter("log_scale", nn.Parameter(torch.zeros(())) if self.learnable else None)

    @property
    def beta(self) -> float | Tensor:
        """The present slope: a number if it is fixed, a scalar tensor if it is learned."""
        return self.initial_beta if self.log_scale is None else self.initial_beta * torch.exp(self.log_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        if self.log_scale is None and self.initial_beta == 1.0:
            return F.silu(x)
        return swish(x, self.beta)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            ``beta=..., learnable=...``.
        """
        return f"beta={self.initial_beta}, learnable={self.learnable}"
