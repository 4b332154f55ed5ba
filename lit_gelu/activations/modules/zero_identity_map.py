"""The stochastic zero-identity map."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.functional.zero_identity_map import zero_identity_map


class ZeroIdentityMap(nn.Module):
    """In training ``m x`` with ``m ~ Bernoulli(Phi(x))`` drawn for each element; in evaluation its expectation, GELU.

    There is no rescaling, and the gradient is the mask alone: no term for the mask's dependence on ``x``. It needs
    neither dropout nor another nonlinearity beside it.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)" (arXiv 1606.08415), section 2; the
    experiments are in section 4 of its first submission ("stochastic 0-I map").

    Example:
        >>> import torch
        >>> torch.allclose(ZeroIdentityMap().eval()(torch.tensor([1.0])), torch.tensor([0.8413447]))
        True
        >>> _ = torch.manual_seed(0)
        >>> ZeroIdentityMap()(torch.full((100,), 0.5)).unique()
        tensor([0.0000, 0.5000])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map elementwise.

        Args:
            x: Any shape, any floating dtype.

        Returns:
            A tensor like ``x``.
        """
        return zero_identity_map(x, training=True) if self.training else F.gelu(x)
