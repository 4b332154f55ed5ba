"""`CIFAR10Data`: the 50,000 and 10,000 colour images of Krizhevsky 2009, whitened as in the GELU paper."""

import os
import warnings
from pathlib import Path
from typing import ClassVar

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lit_gelu.arguments import check_flags
from lit_gelu.data.cifar.base import CIFARData
from lit_gelu.data.cifar.files import CIFARName
from lit_gelu.data.whitening import Whitening, ZCAWhitening, cached_whitening, fit_whitening

EPSILON = 1e-5


class CIFAR10Data(CIFARData):
    """CIFAR-10 in memory, 50,000 training and 10,000 test images of 32x32 pixels in three colours, ZCA-whitened.

    A batch is ``(images, labels)``: images ``[batch, 3, 32, 32]``, ``torch.float32``; labels ``[batch]``,
    ``torch.int64``, 0 to 9. As Hendrycks and Gimpel's code has it (arXiv 1606.08415, section 3.5; after Salimans and
    Kingma 2016, arXiv 1602.07868): ``(pixel - 127.5) / 128``, then ZCA whitening (`lit_gelu.data.whitening`, epsilon
    1e-5, which is in the code only (D10)), fitted to the training images and applied to all; no augmentation; batches
    of 100, so that an epoch has 500 steps. The paper chooses the learning rate on 5,000 held-out images
    (``validation=5000``: which ones it does not say, here 5,000 fixed random ones; the whitening is then fitted to the
    other 45,000) and then trains on all.

    The whitening is fitted once, in half a minute on one CPU core, and kept in a file of 75 MB in ``cache``. It is
    fitted to all training images that are not held out, even where ``train_samples`` takes only some of them: fitted to
    fewer images than they have pixels, it blows others up. (Fitted to 2,000, it gives the test images five times the
    deviation of the training images, and a net that was trained on these guesses.)

    What is read, and how: `lit_gelu.data.CIFARData`.

    Args:
        root: Folder that holds ``cifar-10-batches-py`` or ``cifar10.npz``. ``None`` means the environment variable
            ``LIT_GELU_DATA``, or ``data``.
        arrays: An ``.npz`` file of images and labels to read instead (`lit_gelu.data.cifar.files.read_arrays_file`).
        batch_size: Samples in a batch.
        download: Whether to download the set (170 MB, checked by checksum) where none is there.
        validation: How many training images are held out; the paper uses 5,000 to choose the learning rate, and 0.
        whiten: Whether the images are whitened, or only scaled.
        cache: Folder that fitted whitenings are kept in. ``None`` means ``lit_gelu`` in the user's cache folder
            (``XDG_CACHE_HOME``, or ``~/.cache``).
        train_samples: Read only so many of the first training images. For quick runs; not the paper's protocol.
        test_samples: Read only so many of the first test images. For quick runs; not the paper's protocol.

    Raises:
        ArgumentError: If an argument is not accepted.

    Example:
        >>> data = CIFAR10Data(root="data", validation=5000)
        >>> data.validation, data.batch_size
        (5000, 100)
    """

    set_name: ClassVar[CIFARName] = "cifar10"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        arrays: str | os.PathLike[str] | None = None,
        batch_size: int = 100,
        download: bool = False,
        validation: int = 0,
        whiten: bool = True,
        cache: str | os.PathLike[str] | None = None,
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
        check_flags(whiten=whiten)
        self.whiten = whiten
        self.cache = None if cache is None else Path(cache)
        self.save_hyperparameters({**self.hparams, "whiten": whiten})

    def fit_preprocessing(self, pixels: Tensor) -> nn.Module:
        """Return the scaling and, unless it is off, the whitening."""
        scale = ScaledPixels()
        if not self.whiten:
            return scale
        if self.train_samples is not None:
            everything = self._read_all().x_train
            is_fitted_to = torch.ones(len(everything), dtype=torch.bool)
            is_fitted_to[self._split(self.train_samples)[1]] = False
            pixels = everything[is_fitted_to]
        return nn.Sequential(
            scale, ZCAWhitening(cached_whitening(pixels, EPSILON, self.cache, lambda: _fitted(pixels)))
        )


def _fitted(pixels: Tensor) -> Whitening:
    """Fit the whitening, and say so: it takes a while, or it is of little use."""
    count, values = len(pixels), pixels[0].numel()
    if count < values:
        warnings.warn(
            f"The whitening is fitted to {count} images, fewer than the {values} values of each: it blows up other "
            "images in all directions in which these do not differ, and test errors come out high. Give more images, "
            "or whiten=False.",
            stacklevel=2,
        )
    rank_zero_info(f"Fitting the ZCA whitening to {count:,} images (half a minute for 50,000).")
    return fit_whitening(pixels, EPSILON, ScaledPixels())


class ScaledPixels(nn.Module):
    """``(pixel - 127.5) / 128``: bytes to [-0.996, 0.996], float32."""

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the scaled pixels."""
        return (pixels.to(torch.float32) - 127.5) / 128
