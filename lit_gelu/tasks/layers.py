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
        """Return ``dropout(activation(linear(inputs)))``.

        Args:
            inputs: Shape ``[..., in_features]``.

        Returns:
            Shape ``[..., out_features]``.
        """
        outputs: Tensor = self.dropout(self.activation(self.linear(inputs)))
        return outputs
