"""`CIFAR100Data`: 60,000 colour images of 100 classes, augmented as in the GELU paper's code."""

import os
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lit_gelu.arguments import check_count, check_flags, check_one_of
from lit_gelu.data.cifar.base import AugmentedImages, CIFARData, Padding
from lit_gelu.data.cifar.files import CIFARName
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.errors import ArgumentError

Normalisation = Literal["mean_image", "channels"]
_LEVELS = 256
_CHUNK = 1000


class CIFAR100Data(CIFARData):
    """CIFAR-100 with its 100 fine labels: 100,000 training samples an epoch and 10,000 test images.

    A batch is ``(images, labels)``: images ``[batch, 3, 32, 32]``, ``torch.float32``; labels ``[batch]``,
    ``torch.int64``, 0 to 99. An image is pixel / 255 minus the mean image of the training set, pixel by pixel, not
    divided by a standard deviation. As Hendrycks and Gimpel fed it (arXiv 1606.08415, section 3.5; their code, which
    is Loshchilov and Hutter's, arXiv 1608.03983):

    - An epoch is the 50,000 training images and their 50,000 mirrored copies, in batches of 128: 781 steps. The paper
      says "50 epochs"; in its code that means 50 x 100,000 samples, 39,050 steps (D13). ``mirrored_copies=False`` reads
      it by the letter, 50,000 samples and 390 steps an epoch; expect worse.
    - In training each image is padded with 4 zeros on every side, after the mean is subtracted, and cropped at random
      to 32x32. Their code does so; Zagoruyko and Komodakis (arXiv 1605.07146), whose net it is, reflect the image at
      its edges, mirror at random, and divide by each channel's standard deviation (D17): ``padding="reflect"``,
      ``mirrored_copies=False, random_mirroring=True``, ``normalisation="channels"``.
    - No images are held out: the paper looks at the test set after every epoch, in batches of 500.

    Where files are looked for: `lit_gelu.data.CIFARData`; the names are ``cifar-100-python`` and
    ``cifar100.npz``.

    Args:
        root: Folder that holds the files. ``None`` means the environment variable ``LIT_GELU_DATA``, or ``data``.
        arrays: An ``.npz`` file with x_train, y_train, x_test and y_test to read instead of torchvision's files; an
            absolute path or one from ``root`` on.
        batch_size: Samples in a training batch.
        evaluation_batch_size: Samples in a validation or test batch.
        download: Whether to download the set with torchvision (169 MB, checked by checksum) where none is there.
        validation: How many training images are held out for validation: always the same, chosen at random.
        mirrored_copies: Whether an epoch goes through the mirrored images as well.
        random_mirroring: Whether each sample is mirrored with probability 1/2 instead.
        padding: What lies beyond an image's edge: ``"zeros"``, or ``"reflect"``, its reflection.
        normalisation: What is subtracted: ``"mean_image"``, or ``"channels"``, each channel's mean, and then it is
            divided by the channel's standard deviation.
        train_samples: Read only so many of the first training images, before some are held out. For quick runs: it
            is not the paper's protocol. ``None`` means all.
        test_samples: Read only so many of the first test images. For quick runs. ``None`` means all.

    Raises:
        ArgumentError: If an argument is not accepted.

    Example:
        >>> data = CIFAR100Data(root="data", arrays="own.npz")
        >>> data.arrays.as_posix(), data.batch_size, data.evaluation_batch_size
        ('data/own.npz', 128, 500)
    """

    set_name: ClassVar[CIFARName] = "cifar100"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        arrays: str | os.PathLike[str] | None = None,
        batch_size: int = 128,
        evaluation_batch_size: int = 500,
        download: bool = False,
        validation: int = 0,
        mirrored_copies: bool = True,
        random_mirroring: bool = False,
        padding: Padding = "zeros",
        normalisation: Normalisation = "mean_image",
        train_samples: int | None = None,
        test_samples: int | None = None,
    ) -> None:
        super().__init__(
            root,
            arrays,
            batch_size=batch_size,
            download=download,
            validation=validation,
            train_samples=train_samples,
            test_samples=test_samples,
        )
        check_count("evaluation_batch_size", evaluation_batch_size, 1)
        check_one_of(("zeros", "reflect"), padding=padding)
        check_one_of(("mean_image", "channels"), normalisation=normalisation)
        check_flags(mirrored_copies=mirrored_copies, random_mirroring=random_mirroring)
        if mirrored_copies and random_mirroring:
            raise ArgumentError(
                "mirrored_copies=True and random_mirroring=True given; accepted: one of them. To mirror at random: "
                "mirrored_copies=False."
            )
        self.evaluation_batch_size = evaluation_batch_size
        self.mirrored_copies = mirrored_copies
        self.random_mirroring = random_mirroring
        self.padding: Padding = padding
        self.normalisation: Normalisation = normalisation
        self.save_hyperparameters({
            "mirrored_copies": mirrored_copies,
            "random_mirroring": random_mirroring,
            "padding": padding,
            "normalisation": normalisation,
        })

    def fit_preprocessing(self, pixels: Tensor) -> nn.Module:
        """Return the `PixelNormalisation` by the mean image, or by each channel's mean and standard deviation."""
        if self.normalisation == "channels":
            return PixelNormalisation(*channel_statistics(pixels))
        return PixelNormalisation(mean_image(pixels))

    def training_samples(self, pixels: Tensor, labels: Tensor, preprocessing: nn.Module) -> InMemorySamples:
        """Return the `AugmentedImages`, which mirror and crop whenever a batch is taken."""
        return AugmentedImages(
            pixels,
            labels,
            preprocessing,
            mirrored_copies=self.mirrored_copies,
            random_mirroring=self.random_mirroring,
            padding=self.padding,
        )


class PixelNormalisation(nn.Module):
    """``(x / 255 - mean) / std``; both on the scale of [0, 1], ``[3, 32, 32]`` or ``[3, 1, 1]``."""

    mean: Tensor
    std: Tensor | None

    def __init__(self, mean: Tensor, std: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return normalised images."""
        centred = pixels.to(self.mean.dtype) / (_LEVELS - 1) - self.mean
        return centred if self.std is None else centred / self.std


def mean_image(pixels: Tensor) -> Tensor:
    """Return the mean of images on the scale of [0, 1], ``[channels, height, width]``, float32."""
    total = torch.zeros(pixels.shape[1:], dtype=torch.int64)  # in integers, so without rounding errors
    for first in range(0, len(pixels), _CHUNK):  # a sum makes int64 of all that it adds up
        total += pixels[first : first + _CHUNK].sum(dim=0, dtype=torch.int64)
    return total.double().div(len(pixels) * (_LEVELS - 1)).float()


def channel_statistics(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel on the scale of [0, 1], both ``[channels, 1, 1]``, float32."""
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=_LEVELS) for channel in pixels.unbind(1)])
    shares = counts.double() / counts.sum(dim=1, keepdim=True)
    levels = torch.arange(_LEVELS, dtype=torch.float64) / (_LEVELS - 1)
    mean = shares @ levels
    std = (shares * (levels - mean.unsqueeze(1)).square()).sum(dim=1).sqrt()
    if not std.all():
        raise ArgumentError(
            "All training images have the same value at every pixel of a channel, so it cannot be divided by its "
            'standard deviation. Use normalisation="mean_image".'
        )
    return mean.reshape(-1, 1, 1).float(), std.reshape(-1, 1, 1).float()
