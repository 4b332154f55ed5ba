"""`PaddedLayer`: a layer's weights and moments in rows that a kernel reads sixteen bytes at a time."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

ROW = 16  # numbers, of which a row has a multiple


class PaddedLayer:
    """Copies of a layer's weights and their moments, with columns of zeros behind those that there are.

    Inputs that are padded with zeros, too, have the same products, and the gradients of the further weights are 0, so
    that Adam with an ``eps`` leaves them 0. A row of 150 numbers begins where only eight bytes can be read at once.

    Args:
        stacks: Weights and both moments, ``[replicas, width, features]``.
    """

    def __init__(self, stacks: Sequence[Tensor]) -> None:
        replicas, width, self.features = stacks[0].shape
        self.stacks = [stack.new_zeros(replicas, width, padded_size(self.features)) for stack in stacks]

    def take(self, stacks: Sequence[Tensor]) -> None:
        """Copy what is there."""
        for own, stack in zip(self.stacks, stacks, strict=True):
            own[..., : self.features].copy_(stack)
            own[..., self.features :].zero_()  # of a replica that has diverged they are no numbers

    def put_back(self, stacks: Sequence[Tensor]) -> None:
        """Copy what steps have made of it."""
        for own, stack in zip(self.stacks, stacks, strict=True):
            stack.copy_(own[..., : self.features])


def padded_size(features: int) -> int:
    """Return the size of a padded row.

    >>> padded_size(150), padded_size(784)
    (160, 784)
    """
    return -(-features // ROW) * ROW


def padded(rows: Tensor) -> Tensor:
    """Return rows of inputs with zeros behind them, the very same where none are missing."""
    missing = padded_size(rows.shape[-1]) - rows.shape[-1]
    return functional.pad(rows, (0, missing)) if missing else rows
