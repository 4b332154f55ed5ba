"""Squared ReLU."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it


class SquaredReLU(nn.Module):
    """``f(x) = max(x, 0)^2``, elementwise, any shape and floating dtype.

    Source: So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling" (arXiv 2109.08668),
    section 4.

    Example:
        >>> import torch
        >>> SquaredReLU()(torch.tensor([-1.0, 0.5, 3.0]))
        tensor([0.0000, 0.2500, 9.0000])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        return F.relu(x).square()
