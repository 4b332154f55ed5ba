"""Mirrored and shifted training images, cut a batch at a time out of the originals."""

from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_gelu.data.cifar.base import preprocessed
from lit_gelu.data.in_memory import Batch, InMemorySamples

Padding = Literal["zeros", "reflect"]
MARGIN = 4
_MODES: dict[Padding, str] = {"zeros": "constant", "reflect": "reflect"}


class AugmentedImages(InMemorySamples):
    """Images that are preprocessed, mirrored, padded and cropped at random whenever a batch of them is taken."""

    # Sample i is a crop of image i; with mirrored_copies there are twice as many, and sample n + i is a crop of image i
    # mirrored left to right. Only the originals are stored, as bytes. Every offset is uniform on 0 to 8 and
    # independent, drawn from the default generator on the CPU: the same seed gives the same crops on every device.

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        preprocessing: nn.Module,
        *,
        mirrored_copies: bool = True,
        random_mirroring: bool = False,
        padding: Padding = "zeros",
    ) -> None:
        super().__init__(pixels, labels)
        self.preprocessing = deepcopy(preprocessing)  # it follows the images to their device, the original does not
        self.mirrored_copies = mirrored_copies
        self.random_mirroring = random_mirroring
        self.padding: Padding = padding

    @property
    def pixels(self) -> Tensor:
        """The original images, ``[n, channels, height, width]``, ``torch.uint8``."""
        return self.tensors[0]

    @property
    def inputs(self) -> Tensor:
        """The originals preprocessed but neither mirrored nor cropped, ``[n, channels, height, width]``, float32."""
        return preprocessed(self.pixels, self.preprocessing)

    def move_to(self, device: torch.device) -> None:
        """Move the images, their labels and the preprocessing, so that batches are made there."""
        super().move_to(device)
        self.preprocessing.to(device)

    def __len__(self) -> int:
        return (1 + self.mirrored_copies) * len(self.pixels)

    def __getitem__(self, index: int) -> Batch:
        """Return one sample, newly cropped."""
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    @torch.no_grad()
    def __getitems__(self, indices: list[int]) -> Batch:
        """Return the samples at ``indices``, in that order, newly cropped and stacked; negative ones count back."""
        device, size = self.pixels.device, len(self)
        wanted = torch.as_tensor(indices, dtype=torch.int64)
        outside = wanted[(wanted < -size) | (wanted >= size)]
        if len(outside):  # Python ends a loop over the set by this error
            raise IndexError(
                f"Index {int(outside[0])} given, of {size} samples. Give integers from {-size} to {size - 1}."
            )
        wanted = wanted % size
        offsets = torch.randint(2 * MARGIN + 1, (2, len(wanted)))
        is_mirrored = wanted >= len(self.pixels)
        if self.random_mirroring:
            is_mirrored ^= torch.rand(len(wanted)) < 0.5
        rows = (wanted % len(self.pixels)).to(device)
        images = mirrored(self.preprocessing(self.pixels[rows]), is_mirrored.to(device))
        return cropped(images, offsets.to(device), self.padding), self.labels[rows]


def mirrored(images: Tensor, which: Tensor) -> Tensor:
    """Mirror the images left to right that ``which``, ``[batch]``, marks."""
    return torch.where(which[:, None, None, None], images.flip(3), images)


def cropped(images: Tensor, offsets: Tensor, padding: Padding = "zeros") -> Tensor:
    """Pad images by 4 on every side and cut a window out of each, at offsets ``[2, batch]`` from 0 to 8."""
    height, width = images.shape[2:]
    padded = functional.pad(images, (MARGIN,) * 4, mode=_MODES[padding])
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: [batch, channels, 9, 9, height, width]
    return windows[torch.arange(len(images), device=images.device), :, offsets[0], offsets[1]]
