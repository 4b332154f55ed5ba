"""Digits that were scanned together with digits that are drawn: what the net of the page is trained on."""

import torch
from drawn import Drawings, draw, levels, pixels

from lit_gelu.data import DigitsData, MNISTData
from lit_gelu.data.in_memory import InMemoryDataModule, InMemorySamples

_SEEDS = {"train": 1, "val": 2}


class DrawnData(InMemoryDataModule):
    """A data set of scanned digits, and drawings in the same form beside it, in training and validation.

    The test set stays the scanned one's.

    Args:
        scanned: `DigitsData` or `MNISTData`.
        drawn: Drawings of each digit in the training set; a tenth of that in the validation set.
        batch_size: Samples in a batch.
    """

    def __init__(self, scanned: DigitsData | MNISTData, drawn: int = 2500, batch_size: int = 128) -> None:
        super().__init__(batch_size)
        self.scanned = scanned
        self.drawn = drawn

    def prepare_data(self) -> None:
        """Do what the scanned set needs."""
        self.scanned.prepare_data()

    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        """Read the scanned sets, and draw.

        Returns:
            Training and validation set.
        """
        train, val = self.scanned.load_train_and_val()
        copies = max(1, round(2.5 * self.drawn / len(train)))  # a small set is not to drown among the drawings
        validation = draw(self.drawn // 10, _SEEDS["val"], jitter=0.06)  # shakier than what it is trained on
        return (
            self._together(train, copies, draw(self.drawn, _SEEDS["train"])),
            self._together(val, 1, validation),
        )

    def load_test(self) -> InMemorySamples:
        """Read the scanned test set.

        Returns:
            The test set.
        """
        return self.scanned.load_test()

    def _together(self, scanned: InMemorySamples, copies: int, drawings: Drawings) -> InMemorySamples:
        """Return scanned digits, repeated, and drawings."""
        raw = levels(drawings) if isinstance(self.scanned, DigitsData) else pixels(drawings)
        images = self.scanned.preprocessing()(raw)
        return InMemorySamples(
            torch.cat([scanned.inputs.repeat(copies, 1, 1, 1), images]),
            torch.cat([scanned.labels.repeat(copies), drawings.labels]),
        )
