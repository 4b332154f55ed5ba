"""Layers that several of the paper's nets are built of."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from lit_gelu.activations.analysis.initialisation import init_unit_norm_rows_


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
