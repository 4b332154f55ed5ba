"""The stochastic zero-identity map, of which GELU is the expectation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families.gaussian_gelu import HENDRYCKS_2016
from lit_gelu.activations.families.gelu import EXACT_ONNX, gelu, gelu_derivative
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.numerics.arguments import elementwise
from lit_gelu.activations.numerics.gates import normal_cdf


@elementwise
def zero_identity_map(x: Tensor, training: bool = True, generator: torch.Generator | None = None) -> Tensor:
    """Return ``x`` with each element kept with probability ``Phi(x)``, else 0; without training, the mean ``x Phi(x)``.

    In training ``f(x) = m x`` with ``m = 1`` where ``u < Phi(x)``, else 0, and ``u`` uniform on [0, 1). There is no
    division by ``Phi(x)``, and the gradient is ``m`` alone: none flows through the comparison.

    Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 2; as submitted to ICLR 2017, section 4.

    Args:
        x: Any shape, floating.
        training: Whether to draw, rather than to return the expectation.
        generator: Where the random numbers come from, on the device of ``x``; ``None`` is torch's default.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> zero_identity_map(torch.full((6,), 0.5), generator=generator)
        tensor([0.5000, 0.0000, 0.5000, 0.5000, 0.5000, 0.5000])
        >>> zero_identity_map(torch.tensor([0.5]), training=False)
        tensor([0.3457])
    """
    if not training:
        return gelu(x)
    probability = normal_cdf(x.detach())
    uniform = torch.rand(probability.shape, dtype=probability.dtype, device=probability.device, generator=generator)
    # A selection, not a product: 0 * -inf is NaN. NaN compares as false and is passed on.
    return torch.where((uniform < probability) | torch.isnan(x), x, 0.0)


class ZeroIdentityMap(nn.Module):
    """In training ``m x`` with ``m ~ Bernoulli(Phi(x))`` drawn for each element; in evaluation its expectation, GELU.

    There is no rescaling, and the gradient is the mask alone: no term for the mask's dependence on ``x``. It needs
    neither dropout nor another nonlinearity beside it.

    Bytes kept for the backward pass, for each element in training: 1, the mask.

    Example:
        >>> torch.allclose(ZeroIdentityMap().eval()(torch.tensor([1.0])), torch.tensor([0.8413447]))
        True
        >>> _ = torch.manual_seed(0)
        >>> ZeroIdentityMap()(torch.full((100,), 0.5)).unique()
        tensor([0.0000, 0.5000])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to a floating tensor."""
        return zero_identity_map(x) if self.training else F.gelu(x)


ENTRIES = (
    ActivationEntry(
        "zero_identity_map",
        ZeroIdentityMap,
        function=gelu,
        derivative=gelu_derivative,
        facts=ActivationFacts(
            "m x with m ~ Bernoulli(Phi(x)) in training; x Phi(x) in evaluation",
            HENDRYCKS_2016,
            smoothness=float("inf"),
            asymptotes=("0", "x"),
            stochastic=True,
        ),
        aliases=("soi",),
        onnx=EXACT_ONNX,  # in evaluation the map is its expectation
    ),
)
