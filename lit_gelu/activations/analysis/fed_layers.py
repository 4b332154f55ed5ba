"""Finds the weight layers of a model, and the activation whose output each takes in."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.utils import parametrize

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.naming.names import Names

if TYPE_CHECKING:
    from lit_gelu.activations.naming.spec import ActivationSpec

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHT_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
# Their outputs have a second moment of their own, whatever came before.
NORMALISATIONS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm),
)

WeightLayer = (
    nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
)


@dataclass(frozen=True)
class FedLayer:
    """A weight layer and what feeds it.

    Args:
        name: Its fully qualified name.
        layer: The layer.
        activation: What feeds it: a spec, or the module if no text names it. ``None`` if the data, another weight layer
            or a normalisation layer does.
    """

    name: str
    layer: WeightLayer
    activation: "ActivationSpec | nn.Module | None"


def fed_layers(model: nn.Module, registry: Names) -> list[FedLayer]:
    """Return every weight layer of a model with the activation that feeds it, by the order of registration.

    The activation is the last module of a registered class between this layer and the weight layer before it. Dropout,
    pooling, identities and reshaping pass it on; a normalisation layer does not. What a ``forward`` does otherwise
    (functions such as ``F.relu``, one activation called in several places, branches) is not seen.

    Args:
        model: Any module.
        registry: What counts as an activation.

    Returns:
        In the order of ``model.named_modules()``; a layer that stands in two places once.

    Raises:
        ActivationArgumentError: If a weight is parametrised or not initialised yet.

    Example:
        >>> from lit_gelu.activations import registry
        >>> net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(), nn.Linear(8, 8), nn.Linear(8, 2))
        >>> [(row.name, str(row.activation)) for row in fed_layers(net, registry)]
        [('0', 'None'), ('3', 'gelu'), ('4', 'None')]
    """
    feed: ActivationSpec | nn.Module | None = None
    rows: dict[nn.Module, FedLayer] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, WEIGHT_LAYERS):
            _check(name, module)
            rows.setdefault(module, FedLayer(name, module, feed))
            feed = None
        elif isinstance(module, NORMALISATIONS):
            feed = None
        elif not isinstance(module, nn.Identity) and registry.entry_of(module) is not None:
            spec = registry.spec_of(module)
            feed = module if spec.opaque else spec
    return list(rows.values())


def fan_in(layer: WeightLayer) -> float:
    """Return how many products are summed to one output of a weight layer.

    For a transposed convolution it is the mean over outputs away from the border,
    ``in_channels / groups * kernel / stride``, as its inputs are spread out by the stride.

    Args:
        layer: The layer.

    Returns:
        The number, whole but for transposed convolutions.

    Example:
        >>> fan_in(nn.Conv2d(16, 32, 3, groups=2)), fan_in(nn.ConvTranspose2d(16, 32, 4, stride=2))
        (72.0, 64.0)
    """
    if isinstance(layer, TRANSPOSED):
        spread = math.prod(kernel / stride for kernel, stride in zip(layer.kernel_size, layer.stride, strict=True))
        return layer.in_channels / layer.groups * spread
    return float(layer.weight[0].numel())


def _check(name: str, layer: WeightLayer) -> None:
    if isinstance(layer.weight, nn.parameter.UninitializedParameter):
        raise ActivationArgumentError(f"{name!r} has no shape yet: run the model once, then initialise it.")
    if parametrize.is_parametrized(layer, "weight") or not isinstance(layer.weight, nn.Parameter):
        raise ActivationArgumentError(
            f"The weight of {name!r} is computed from other parameters, so it cannot be set: initialise the model "
            "before weight norm, spectral norm or another parametrisation is applied."
        )
