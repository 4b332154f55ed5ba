"""Frames as a net takes them: batches of whole sentences, each frame with its neighbours, each feature normalised."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lit_gelu.data.in_memory import Batch, InMemorySamples

CONTEXT = 5


class SentenceFrames(InMemorySamples):
    """Frames of sentences, taken out a sentence at a time, each frame with the five before and the five after it."""

    # Length and what a sampler draws from are the sentences; inputs and labels are those of frames, of which a negative
    # label makes one a part of windows only. Before the first and after the last frame of a sentence, those stand
    # again. The windows are cut when a batch is taken: they take 11 times the memory of the features.

    def __init__(self, features: Tensor, labels: Tensor, lengths: Tensor) -> None:
        ends = lengths.cumsum(0)
        rows = torch.nonzero(labels >= 0).squeeze(1)
        owner = torch.searchsorted(ends, rows, right=True)
        super().__init__(rows, labels[rows])
        # All that `move_to` moves: the labelled frames' rows, labels, first and last rows of their sentence; features.
        self.tensors = (rows, labels[rows], (ends - lengths)[owner], ends[owner] - 1, features)
        self._ends = torch.searchsorted(rows, ends).tolist()  # in labelled frames

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def inputs(self) -> Tensor:
        """The windows of all labelled frames, ``[frames, 11 * features]``, cut anew at each call."""
        return self._windows(slice(None))

    @property
    def features(self) -> Tensor:
        """All frames' features, ``[frames, features]``."""
        return self.tensors[4]

    def __getitem__(self, index: int) -> Batch:
        """Return the windows and labels of one sentence."""
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return windows ``[frames, 11 * features]`` and labels of some sentences, one sentence after the other."""
        starts = [0, *self._ends]
        positions = torch.cat([torch.arange(starts[index], self._ends[index]) for index in indices])
        positions = positions.to(self.features.device)
        return self._windows(positions), self.labels[positions]

    def _windows(self, positions: Tensor | slice) -> Tensor:
        """Return the windows of the labelled frames at ``positions``."""
        row, _, first, last, features = self.tensors
        neighbours = row[positions, None] + torch.arange(-CONTEXT, CONTEXT + 1, device=row.device)
        return features[neighbours.clamp(first[positions, None], last[positions, None])].flatten(start_dim=1)


_LEAST = 1e-11  # added to the deviation, as in the GELU paper's code


class Normalisation(NamedTuple):
    """What is taken away from each feature, and what it is divided by; both ``[features]``."""

    mean: Tensor
    deviation: Tensor


def fit_normalisation(features: Tensor, lengths: Tensor, padded: bool = False) -> Normalisation:
    """Return mean and deviation (of the population, plus 1e-11) of each feature over the training frames."""
    # Padded counts the zeros that would bring every sentence to the length of the longest: the GELU paper's code takes
    # its statistics over such an array, by what looks like an oversight.
    count = len(lengths) * int(lengths.max()) if padded else len(features)
    values = features.double()
    mean = values.sum(dim=0) / count
    zeros = (count - len(features)) * mean.square()
    deviation = (((values - mean).square().sum(dim=0) + zeros) / count).sqrt()
    return Normalisation(mean.float(), (deviation + _LEAST).float())


class NormaliseFrames(nn.Module):
    """Normalises windows of features as they come out of the extraction: what a deployed net wants before it."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, normalisation: Normalisation) -> None:
        super().__init__()
        self.register_buffer("mean", normalisation.mean)
        self.register_buffer("deviation", normalisation.deviation)

    def forward(self, windows: Tensor) -> Tensor:
        """Return the windows with each feature normalised."""
        frames = torch.unflatten(windows, -1, (-1, len(self.mean)))
        normalised: Tensor = (frames - self.mean) / self.deviation
        return normalised.flatten(start_dim=-2)
