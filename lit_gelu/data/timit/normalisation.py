"""Bringing each feature to mean 0 and deviation 1 over the training frames."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

_LEAST = 1e-11  # added to the deviation, as in the GELU paper's code


class Normalisation(NamedTuple):
    """What is taken away from each feature, and what it is divided by; both ``[features]``."""

    mean: Tensor
    deviation: Tensor


def fit_normalisation(features: Tensor, lengths: Tensor, padded: bool = False) -> Normalisation:
    """Return the mean and the deviation (that of the population) of each feature over the training frames.

    Args:
        features: All training frames, ``[frames, features]``.
        lengths: Frames of each sentence, ``[sentences]``.
        padded: Whether to count the zeros that would bring every sentence to the length of the longest. The GELU
            paper's code takes its statistics over such a padded array, by what looks like an oversight.

    Returns:
        Mean, and deviation plus 1e-11, ``torch.float32``.

    Example:
        >>> features = torch.tensor([[1.0], [3.0], [5.0]])
        >>> fit_normalisation(features, torch.tensor([1, 2])).mean.item()
        3.0
        >>> fit_normalisation(features, torch.tensor([1, 2]), padded=True).mean.item()
        2.25
    """
    count = len(lengths) * int(lengths.max()) if padded else len(features)
    values = features.double()
    mean = values.sum(dim=0) / count
    zeros = (count - len(features)) * mean.square()
    deviation = (((values - mean).square().sum(dim=0) + zeros) / count).sqrt()
    return Normalisation(mean.float(), (deviation + _LEAST).float())


class NormaliseFrames(nn.Module):
    """Normalises windows of features as they come out of the extraction: what a deployed net wants before it.

    Args:
        normalisation: Of one frame's features.

    Example:
        >>> module = NormaliseFrames(Normalisation(torch.tensor([1.0]), torch.tensor([2.0])))
        >>> module(torch.tensor([[1.0, 3.0, 5.0]]))
        tensor([[0., 1., 2.]])
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, normalisation: Normalisation) -> None:
        super().__init__()
        self.register_buffer("mean", normalisation.mean)
        self.register_buffer("deviation", normalisation.deviation)

    def forward(self, windows: Tensor) -> Tensor:
        """Return the windows with each feature normalised.

        Args:
            windows: Any number of frames side by side, ``[..., frames * features]``, a floating dtype.

        Returns:
            Of the same shape.
        """
        frames = torch.unflatten(windows, -1, (-1, len(self.mean)))
        normalised: Tensor = (frames - self.mean) / self.deviation
        return normalised.flatten(start_dim=-2)
