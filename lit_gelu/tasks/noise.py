"""Noise that a net adds in training: Gaussian noise, and which modules are noisy."""

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from lit_gelu.activations import ActivationRegistry


class GaussianNoise(nn.Module):
    """Adds normal noise of a ``deviation`` in training, and is the identity in evaluation and in an exported graph."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    @property
    def adds_noise(self) -> bool:
        """Whether it draws random numbers in training mode."""
        return self.deviation > 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``inputs + deviation * noise``, the noise of variance 1 and drawn anew for each element."""
        if not self.training or self.deviation == 0:
            return inputs
        return inputs + self.deviation * torch.randn_like(inputs)

    def extra_repr(self) -> str:
        """Return the deviation, for ``print``."""
        return f"deviation={self.deviation}"


def adds_noise(module: nn.Module, registry: ActivationRegistry) -> bool:
    """Tell whether a module draws random numbers in training mode; one may say so by an attribute ``adds_noise``."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(says := getattr(module, "adds_noise", None), bool):
        return says
    entry = registry.entry_of(module)
    return entry is not None and entry.facts_for(registry.spec_of(module).arguments).stochastic
