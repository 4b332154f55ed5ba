"""Sentences of frames in memory: batches of whole sentences, each frame with its neighbours."""

import torch
from torch import Tensor

from lit_gelu.data.in_memory import Batch, InMemorySamples

CONTEXT = 5


class SentenceFrames(InMemorySamples):
    """Frames of sentences, taken out a sentence at a time, each frame with the five before and the five after it.

    Its length, and what a sampler draws from, is the number of sentences; its inputs and labels are those of frames.
    Before the first and after the last frame of a sentence, those stand again: no window reaches into another sentence.
    The windows are cut when a batch is taken, 11 times the memory of the features.

    Args:
        features: All sentences' frames one after the other, ``[frames, features]``, ``torch.float32``.
        labels: Their classes, ``[frames]``, ``torch.int64``; a frame with a negative one is part of windows only.
        lengths: Frames of each sentence, ``[sentences]``, ``torch.int64``, each at least 1.

    Example:
        >>> data = SentenceFrames(torch.arange(3.0)[:, None], torch.tensor([7, 8, 9]), torch.tensor([2, 1]))
        >>> windows, labels = data.__getitems__([1, 0])
        >>> windows.int().tolist()[1:]
        [[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]]
        >>> labels, len(data)
        (tensor([9, 7, 8]), 2)
    """

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
        """Return the windows and labels of one sentence.

        Args:
            index: Its position.

        Returns:
            As `__getitems__`.
        """
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return the windows and labels of some sentences' frames, one sentence after the other.

        Args:
            indices: Positions of the sentences, in the order wanted.

        Returns:
            Windows ``[frames, 11 * features]``, the earliest frame first, and labels ``[frames]``.
        """
        starts = [0, *self._ends]
        positions = torch.cat([torch.arange(starts[index], self._ends[index]) for index in indices])
        positions = positions.to(self.features.device)
        return self._windows(positions), self.labels[positions]

    def _windows(self, positions: Tensor | slice) -> Tensor:
        """Return the windows of the labelled frames at ``positions``."""
        row, _, first, last, features = self.tensors
        neighbours = row[positions, None] + torch.arange(-CONTEXT, CONTEXT + 1, device=row.device)
        return features[neighbours.clamp(first[positions, None], last[positions, None])].flatten(start_dim=1)
