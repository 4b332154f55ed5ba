"""xIELU with two learned coefficients."""

import torch
from torch import Tensor, nn

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional.xielu import xielu
from lit_gelu.activations.modules.channels import positive_number


class XIELU(nn.Module):
    """``alpha_p x^2 + beta x`` above 0, ``alpha_n (exp(x) - 1 - x) + beta x`` below; any shape and floating dtype.

    The paper learns ``alpha_p > 0`` and ``alpha_n > beta`` through a softplus. Here they are ``alpha_p exp(log_p)`` and
    ``beta + (alpha_n - beta) exp(log_n)`` with both parameters starting at 0, so that they start at exactly the numbers
    given and weight decay pulls them back there, as everywhere in this package.

    Source: Huang and Schlag 2024, "Deriving Activation Functions Using Integration" (arXiv 2411.13010).

    Args:
        alpha_p: Coefficient above 0, or its initial value; positive.
        alpha_n: Coefficient below 0, or its initial value; above ``beta``.
        beta: Slope at 0, fixed.
        learnable: Whether both coefficients are learned (two scalars).

    Raises:
        ActivationArgumentError: If a number is out of its range.

    Example:
        >>> XIELU()(torch.tensor([-1.0, 0.0, 1.0])).detach()
        tensor([-0.2057,  0.0000,  1.3000])
    """

    log_p: nn.Parameter | None
    log_n: nn.Parameter | None

    def __init__(self, alpha_p: float = 0.8, alpha_n: float = 0.8, beta: float = 0.5, learnable: bool = True) -> None:
        super().__init__()
        self.initial_alpha_p = positive_number("alpha_p", alpha_p)
        self.initial_alpha_n = positive_number("alpha_n", alpha_n)
        self.beta = positive_number("beta", beta)
        if not self.initial_alpha_n > self.beta:
            raise ActivationArgumentError(f"alpha_n={alpha_n!r} is not accepted: give a number above beta={beta!r}.")
        self.learnable = bool(learnable)
        self.register_parameter("log_p", nn.Parameter(torch.zeros(())) if self.learnable else None)
        self.register_parameter("log_n", nn.Parameter(torch.zeros(())) if self.learnable else None)

    @property
    def alpha_p(self) -> float | Tensor:
        """The present coefficient above 0: a number if it is fixed, a scalar tensor if it is learned."""
        return self.initial_alpha_p if self.log_p is None else self.initial_alpha_p * torch.exp(self.log_p)

    @property
    def alpha_n(self) -> float | Tensor:
        """The present coefficient below 0: a number if it is fixed, a scalar tensor if it is learned."""
        if self.log_n is None:
            return self.initial_alpha_n
        return self.beta + (self.initial_alpha_n - self.beta) * torch.exp(self.log_n)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        return xielu(x, self.alpha_p, self.alpha_n, self.beta)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            ``alpha_p=..., alpha_n=..., beta=..., learnable=...``.
        """
        return (
            f"alpha_p={self.initial_alpha_p}, alpha_n={self.initial_alpha_n}, beta={self.beta}, "
            f"learnable={self.learnable}"
        )
