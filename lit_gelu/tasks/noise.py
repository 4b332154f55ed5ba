"""Noise that a net adds in training: which modules do."""

from torch import nn

from lit_gelu.activations import ActivationRegistry

_DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def adds_noise(module: nn.Module, registry: ActivationRegistry) -> bool:
    """Tell whether a module draws random numbers in training mode.

    Args:
        module: One module; its children are not looked at.
        registry: Where the facts about activations are looked up.

    Returns:
        True for dropout with a positive probability, and for an activation that is registered as stochastic.

    Example:
        >>> from lit_gelu.activations import create, registry
        >>> modules = (nn.Dropout(0.5), nn.Dropout(0.0), nn.GELU(), create("zero_identity_map"))
        >>> [adds_noise(module, registry) for module in modules]
        [True, False, False, True]
    """
    if isinstance(module, _DROPOUT):
        return module.p > 0
    entry = registry.entry_of(module)
    return entry is not None and entry.facts_for(registry.spec_of(module).arguments).stochastic
