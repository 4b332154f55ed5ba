"""Initialisers: the GELU paper's unit-norm rows, and weights scaled for the activation that feeds each layer.

Sources: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 3.1, "unit norm rows"; the authors' code normalises the
columns of an ``[in, out]`` matrix, which are torch's rows. He et al. 2015 (arXiv 1502.01852) for the variance
``gain^2 / fan_in``.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lit_gelu.activations.gaussian import gain
from lit_gelu.activations.naming.names import Names, registry_or_default
from lit_gelu.errors import ArgumentError

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
class InitialisedLayer:
    """How one layer was initialised."""

    name: str  # its fully qualified name
    activation: str  # what feeds it, ``""`` for nothing
    gain: float  # the standard deviation of its weights times ``sqrt(fan_in)``
    weight_std: float  # standard deviation of its weights


@dataclass(frozen=True)
class FedLayer:
    """A weight layer and what feeds it."""

    name: str  # fully qualified
    layer: WeightLayer
    activation: nn.Module | None  # None if the data, another weight layer or a normalisation layer feeds it
    text: str  # its spec; of a module without one the module


def unit_norm_rows_(weight: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a weight with standard normal values and divide each row by its Euclidean norm, in place."""
    # The rows are those of ``weight.flatten(1)``: all that one neuron, or one filter, multiplies. They are then uniform
    # on the unit sphere, and each entry has variance ``1 / fan_in``.
    dtype = torch.promote_types(weight.dtype, torch.float32)
    with torch.no_grad():
        drawn = torch.randn(weight.shape, dtype=dtype, device=weight.device, generator=generator).flatten(1)
        return weight.copy_((drawn / drawn.norm(dim=1, keepdim=True)).view_as(weight))


def initialise_for_activations_(
    model: nn.Module, kind: str = "forward", *, generator: torch.Generator | None = None, registry: Names | None = None
) -> tuple[InitialisedLayer, ...]:
    """Draw the weights of every linear and convolution layer from ``N(0, gain^2 / fan_in)``, in place; biases are 0.

    The gain is that of the activation that feeds the layer, with its parameters as they are now, for standard normal
    pre-activations, and 1 where none does: in the first layer, after another weight layer, and after one of torch's
    normalisation layers. Which activation feeds a layer is read from the order of registration (see `fed_layers`);
    check the rows that are returned. A weight that several layers share is drawn once, for the first of them.

    Args:
        model: Any module; transposed convolutions count with their mean fan-in. Other layers are left as they are.
        kind: The kind of gain: ``"forward"``, ``"variance"`` or ``"backward"``.
        generator: Where the random numbers come from, on the weights' device; ``None`` is torch's default.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        One row for each layer, in the order of registration.

    Raises:
        ArgumentError: If an argument is not accepted, there is no layer, none of several is fed by an activation, a
            weight cannot be set, an activation differs between its channels or has no gain: f or f' is 0 for all
            pre-activations.

    Example:
        >>> net = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 16))
        >>> [(row.activation, round(row.gain, 6)) for row in initialise_for_activations_(net)]
        [('', 1.0), ('gelu', 1.53353)]
    """
    registry = registry_or_default(registry)
    if not (layers := fed_layers(model, registry)):
        raise ArgumentError(f"{type(model).__name__} has no linear or convolution layer to initialise.")
    if len(layers) > 1 and all(row.activation is None for row in layers):
        raise ArgumentError(
            f"No activation stands between the {len(layers)} layers of {type(model).__name__} in the order of "
            "registration. Have it hold its activations as modules of registered classes, each behind its layer."
        )
    rows = []
    for fed in layers:
        factor = 1.0 if fed.activation is None else gain(fed.activation, kind, registry=registry)
        rows.append(InitialisedLayer(fed.name, fed.text, factor, factor / math.sqrt(fan_in(fed.layer))))
    with torch.no_grad():
        for fed, row in zip(layers, rows, strict=True):
            weight = fed.layer.weight
            dtype = torch.promote_types(weight.dtype, torch.float32)  # 16-bit weights are those of float32 rounded
            drawn = torch.randn(weight.shape, dtype=dtype, device=weight.device, generator=generator)
            weight.copy_(drawn * row.weight_std)
            if fed.layer.bias is not None:
                fed.layer.bias.zero_()
    return tuple(rows)


def fed_layers(model: nn.Module, registry: Names) -> list[FedLayer]:
    """Return every weight layer of a model once, and the activation that feeds it, by order of registration."""
    # The activation is the last module of a registered class between this layer and the weight layer before it.
    # Dropout, pooling, identities and reshaping pass it on; a normalisation layer does not. What a ``forward`` does
    # otherwise (functions such as ``F.relu``, one activation called in several places, branches) is not seen.
    feed: tuple[nn.Module | None, str] = (None, "")
    rows: dict[nn.Parameter, FedLayer] = {}  # by weight
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, WEIGHT_LAYERS):
            if isinstance(module.weight, nn.parameter.UninitializedParameter):
                raise ArgumentError(f"{name!r} has no shape yet: run the model once, then initialise it.")
            if parametrize.is_parametrized(module, "weight") or not isinstance(module.weight, nn.Parameter):
                raise ArgumentError(
                    f"The weight of {name!r} is computed from other parameters, so it cannot be set: initialise the "
                    "model before weight norm, spectral norm or another parametrisation is applied."
                )
            rows.setdefault(module.weight, FedLayer(name, module, *feed))
            feed = None, ""
        elif isinstance(module, NORMALISATIONS):
            feed = None, ""
        elif not isinstance(module, nn.Identity) and registry.entry_of(module) is not None:
            spec = registry.spec_of(module)
            on_meta = any(parameter.is_meta for parameter in module.parameters())  # without values
            feed = (registry.create(spec) if on_meta else module), str(module if spec.opaque else spec)
    return list(rows.values())


def fan_in(layer: WeightLayer) -> float:
    """Return how many products are summed to one output of a weight layer; for a transposed convolution the mean."""
    # For a transposed convolution it is the mean over outputs away from the border,
    # ``in_channels / groups * kernel / stride``, as its inputs are spread out by the stride.
    if isinstance(layer, TRANSPOSED):
        spread = math.prod(kernel / stride for kernel, stride in zip(layer.kernel_size, layer.stride, strict=True))
        return layer.in_channels / layer.groups * spread
    return float(layer.weight[0].numel())
