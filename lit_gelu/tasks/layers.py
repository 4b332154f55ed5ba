"""Layers that several of the paper's nets are built of."""

from torch import Tensor, nn


class HiddenLayer(nn.Module):
    """Linear, activation, dropout.

    Args:
        in_features: Size of the input's last dimension.
        out_features: Size of the output's last dimension.
        activation: The activation module; it belongs to this layer alone.
        keep: Probability of keeping a unit in training; kept units are scaled by 1 / keep.

    Example:
        >>> HiddenLayer(3, 2, nn.GELU(), keep=0.5)(Tensor(4, 3)).shape
        torch.Size([4, 2])
    """

    def __init__(self, in_features: int, out_features: int, activation: nn.Module, keep: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.activation = activation
        self.dropout = nn.Dropout(1 - keep)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``dropout(activation(linear(inputs)))``."""
        outputs: Tensor = self.dropout(self.activation(self.linear(inputs)))
        return outputs


class ConvLayer(nn.Module):
    """Convolution without bias, normalisation, activation.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Height and width of the kernel, odd.
        norm: The normalisation of ``out_channels``; like the activation, it belongs to this layer alone.
        activation: The activation module.
        padding: Zeros on each side; ``None`` for as many as keep height and width.

    Example:
        >>> ConvLayer(3, 8, 3, nn.BatchNorm2d(8), nn.GELU())(Tensor(4, 3, 6, 6)).shape
        torch.Size([4, 8, 6, 6])
    """

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
