"""Hard Mish."""

from torch import Tensor, nn


class HardMish(nn.Module):
    """``f(x) = x min(max(x + 2, 0), 2) / 2``, elementwise, any shape and floating dtype.

    Source: Misra 2020, notes on "H-Mish" (github.com/digantamisra98/H-Mish).

    Example:
        >>> import torch
        >>> HardMish()(torch.tensor([-3.0, -1.0, 1.0]))
        tensor([-0.0000, -0.5000,  1.0000])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        return 0.5 * x * (x + 2.0).clamp(0.0, 2.0)
