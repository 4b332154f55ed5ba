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
    """Images that are preprocessed, mirrored, padded and cropped at random whenever a batch of them is taken.

    Sample ``i`` is a crop of image ``i``; with ``mirrored_copies`` there are twice as many samples, and sample
    ``n + i`` of ``n`` images is a crop of image ``i`` mirrored left to right. Only the originals are stored, as bytes.
    Every offset is uniform on 0 to 8, independent of the others, and drawn from torch's default generator on the CPU:
    the same seed gives the same crops on every device.

    Args:
        pixels: The images, ``[n, channels, height, width]``, ``torch.uint8``.
        labels: Their labels, ``[n]``, ``torch.int64``.
        preprocessing: A module from pixels to float32 images, applied before mirroring and padding; a copy is kept.
        mirrored_copies: Whether the mirrored images are samples too.
        random_mirroring: Whether each sample is mirrored with probability 1/2.
        padding: What lies beyond the edge of a preprocessed image: ``"zeros"``, or the image's reflection.

    Example:
        >>> data = AugmentedImages(torch.zeros(5, 3, 32, 32, dtype=torch.uint8), torch.arange(5), nn.Identity())
        >>> images, labels = data.__getitems__([3, 8])
        >>> len(data), images.shape, labels
        (10, torch.Size([2, 3, 32, 32]), tensor([3, 3]))
    """

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
        """Move the images, their labels and the preprocessing, so that batches are made there.

        Args:
            device: Where to.
        """
        super().move_to(device)
        self.preprocessing.to(device)

    def __len__(self) -> int:
        return (1 + self.mirrored_copies) * len(self.pixels)

    def __getitem__(self, index: int) -> Batch:
        """Return one sample, newly cropped.

        Args:
            index: Its position.

        Returns:
            An image ``[channels, height, width]`` and its label.
        """
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    @torch.no_grad()
    def __getitems__(self, indices: list[int]) -> Batch:
        """Return the samples at ``indices``, newly cropped, stacked.

        Args:
            indices: Positions of the samples, in the order wanted.

        Returns:
            Images ``[len(indices), channels, height, width]``, float32, and labels ``[len(indices)]``.
        """
        device = self.pixels.device
        wanted = torch.as_tensor(indices, dtype=torch.int64)
        offsets = torch.randint(2 * MARGIN + 1, (2, len(wanted)))
        is_mirrored = wanted >= len(self.pixels)
        if self.random_mirroring:
            is_mirrored ^= torch.rand(len(wanted)) < 0.5
        rows = (wanted % len(self.pixels)).to(device)
        images = mirrored(self.preprocessing(self.pixels[rows]), is_mirrored.to(device))
        return cropped(images, offsets.to(device), self.padding), self.labels[rows]


def mirrored(images: Tensor, which: Tensor) -> Tensor:
    """Mirror some images left to right.

    Args:
        images: Shape ``[batch, channels, height, width]``.
        which: The images to mirror, ``[batch]``, ``torch.bool``.

    Returns:
        Images of the same shape.

    Example:
        >>> mirrored(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).reshape(2, 1, 1, 2), torch.tensor([False, True])).flatten()
        tensor([1., 2., 4., 3.])
    """
    return torch.where(which[:, None, None, None], images.flip(3), images)


def cropped(images: Tensor, offsets: Tensor, padding: Padding = "zeros") -> Tensor:
    """Pad images by 4 on every side and cut windows of the original size out of them, one of each.

    Args:
        images: Shape ``[batch, channels, height, width]``, floating.
        offsets: The windows' upper and left edges, ``[2, batch]``, integers from 0 to 8; 4 and 4 give the image back.
        padding: What lies beyond the edge: ``"zeros"``, or the image's reflection.

    Returns:
        The windows, ``[batch, channels, height, width]``.

    Example:
        >>> cropped(torch.arange(1.0, 6.0).reshape(1, 1, 1, 5), torch.tensor([[4], [2]])).flatten()
        tensor([0., 0., 1., 2., 3.])
    """
    height, width = images.shape[2:]
    padded = functional.pad(images, (MARGIN,) * 4, mode=_MODES[padding])
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: [batch, channels, 9, 9, height, width]
    return windows[torch.arange(len(images), device=images.device), :, offsets[0], offsets[1]]
