"""Noise that a net adds in training: Gaussian noise, and which modules are noisy."""

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry

_DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


class GaussianNoise(nn.Module):
    """Adds normal noise in training, and is the identity in evaluation and in an exported graph.

    Args:
        deviation: Standard deviation of the noise, in the input's unit; 0 turns it off.

    Example:
        >>> noise = GaussianNoise(0.15)
        >>> _ = torch.manual_seed(0)
        >>> noise(torch.zeros(100_000)).std().round(decimals=2)
        tensor(0.1500)
        >>> noise.eval()(torch.ones(2))
        tensor([1., 1.])
    """

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``inputs + deviation * noise``, the noise of variance 1 and drawn anew for each element.

        Args:
            inputs: Any shape, a floating dtype.

        Returns:
            The same shape and dtype.
        """
        if not self.training or self.deviation == 0:
            return inputs
        return inputs + self.deviation * torch.randn_like(inputs)

    def extra_repr(self) -> str:
        """Return the deviation, for ``print``."""
        return f"deviation={self.deviation}"


def adds_noise(module: nn.Module, registry: ActivationRegistry) -> bool:
    """Tell whether a module draws random numbers in training mode.

    Args:
        module: One module; its children are not looked at.
        registry: Where the facts about activations are looked up.

    Returns:
        True for dropout with a positive probability, for `GaussianNoise` with a positive deviation, and for an
        activation that is registered as stochastic.

    Example:
        >>> from lit_gelu.activations import create, registry
        >>> modules = (nn.Dropout(0.5), nn.Dropout(0.0), GaussianNoise(0.15), nn.GELU(), create("zero_identity_map"))
        >>> [adds_noise(module, registry) for module in modules]
        [True, False, True, False, True]
    """
    if isinstance(module, _DROPOUT):
        return module.p > 0
    if isinstance(module, GaussianNoise):
        return module.deviation > 0
    entry = registry.entry_of(module)
    return entry is not None and entry.facts_for(registry.spec_of(module).arguments).stochastic
