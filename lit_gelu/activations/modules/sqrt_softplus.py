"""The square root of softplus."""

from torch import Tensor, nn

from lit_gelu.activations.functional.sqrt_softplus import sqrt_softplus


class SqrtSoftplus(nn.Module):
    """``f(x) = sqrt(log(1 + exp(x)))``, elementwise, any shape and floating dtype.

    Source: transformers 5.23, ``SqrtSoftplusActivation``.

    Example:
        >>> import torch
        >>> SqrtSoftplus()(torch.tensor([-1.0, 1.0]))
        tensor([0.5597, 1.1460])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        return sqrt_softplus(x)
