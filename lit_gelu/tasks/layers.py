"""What the paper's nets have in common: their layers, and the arguments and inputs that they refuse."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.analysis.initialisation import init_unit_norm_rows_
from lit_gelu.errors import ArgumentError, shown


class HiddenLayer(nn.Module):
    """Linear, activation, dropout that keeps a unit with probability ``keep``, for inputs ``[..., in_features]``."""

    def __init__(self, in_features: int, out_features: int, activation: nn.Module, keep: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.activation = activation
        self.dropout = nn.Dropout(1 - keep)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``dropout(activation(linear(inputs)))``."""
        outputs: Tensor = self.dropout(self.activation(self.linear(inputs)))
        return outputs


def dense_layers(sizes: Sequence[int], make_activation: Callable[[], nn.Module], keep: float = 1.0) -> nn.Sequential:
    """Return a `HiddenLayer` from each size to the next, each with an activation of its own."""
    return nn.Sequential(*(HiddenLayer(fed, width, make_activation(), keep) for fed, width in pairwise(sizes)))


def init_unit_norm_(hidden: Iterable[nn.Module], output: nn.Linear) -> None:
    """Draw the rows of every hidden layer's weight, and the output's, with length 1, biases 0, in place."""
    for linear in [*(layer.get_submodule("linear") for layer in hidden), output]:  # not what an activation may hold
        init_unit_norm_rows_(linear)


class ConvLayer(nn.Module):
    """Convolution without bias, norm, activation; ``padding=None`` keeps height and width (kernels are of odd size)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        norm: nn.Module,
        activation: nn.Module,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        padding = kernel_size // 2 if padding is None else padding
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding, bias=False)
        self.norm = norm
        self.activation = activation

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``activation(norm(conv(inputs)))``."""
        outputs: Tensor = self.activation(self.norm(self.conv(inputs)))
        return outputs


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


PIXELS = 28 * 28
_Range = tuple[Callable[[float], bool], str]  # whether a number is accepted, and what is
_SHARE: _Range = (lambda value: 0 <= value < 1, "a number of at least 0 and below 1")
_POSITIVE: _Range = (lambda value: 0 < value < math.inf, "a number above 0, such as 1e-3")
_NOT_NEGATIVE: _Range = (lambda value: 0 <= value < math.inf, "a number of at least 0; 0 turns it off")
_COUNT: _Range = (lambda value: isinstance(value, int) and 1 <= value <= 100_000, "an integer from 1 to 100,000")
_RANGES: Mapping[str, _Range] = {
    "learning_rate": _POSITIVE,
    "eps": _POSITIVE,
    "keep": (lambda value: 0 < value <= 1, "a probability above 0 and at most 1; 1 turns dropout off"),
    "noise": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
    "dropout": _SHARE,
    "momentum": _SHARE,
    "beta1": _SHARE,
    "beta2": _SHARE,
}


def check_numbers(**arguments: float) -> None:
    """Refuse a number outside the range for its name; a name without a range stands for a count."""
    for name, value in arguments.items():
        is_accepted, accepts = _RANGES.get(name, _COUNT)
        if not isinstance(value, int | float) or isinstance(value, bool) or not is_accepted(value):
            raise ArgumentError(f"{name}={shown(value)} is not accepted. Give {accepts}.")


def check_inputs(inputs: Tensor, is_accepted: bool, accepts: str) -> None:
    """Refuse inputs of another shape, or that are not in a floating dtype."""
    if not is_accepted or not inputs.is_floating_point():
        raise ArgumentError(
            f"Inputs of shape {list(inputs.shape)} and dtype {inputs.dtype} given; accepted: {accepts}, a floating "
            "dtype, as the data module makes them. For raw pixels: data.preprocessing()(images)."
        )


def check_digit_images(images: Tensor) -> None:
    """Refuse a batch that does not hold 784 pixels a sample."""
    fits = images.ndim >= 2 and images.shape[1:].numel() == PIXELS
    check_inputs(images, fits, "[batch, 1, 28, 28] or [batch, 784]")
