"""`CIFAR10Data` and `CIFAR100Data`, fed as in the GELU paper, and `CIFARData`, what they share."""

import os
import warnings
from abc import abstractmethod
from copy import deepcopy
from pathlib import Path
from typing import ClassVar

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.nn import functional

from lit_gelu.arguments import check_count, check_flags
from lit_gelu.data.cifar_files import (
    CLASSES,
    READERS,
    CIFARName,
    ImageArrays,
    cifar_folder,
    missing_cifar_files,
    read_arrays_file,
    read_cifar,
)
from lit_gelu.data.in_memory import Batch, InMemoryDataModule, InMemorySamples, data_root, download, recorded_path
from lit_gelu.data.whitening import Whitening, ZCAWhitening, cached_whitening, fit_whitening
from lit_gelu.errors import ArgumentError, DataError
from lit_gelu.files import is_file, is_folder

MARGIN = 4
EPSILON = 1e-5
_SPLIT_SEED = 0
_CHUNK = 1000  # images preprocessed at a time, so that intermediate results stay small


class CIFARData(InMemoryDataModule):
    """32x32 colour images in memory, out of torchvision's files or an arrays file; a subclass says how they are fed.

    A subclass names its set and writes `fit_preprocessing`, and may write `training_samples`, for augmentation. What
    preprocessing learns (means, whitening) it learns of the images trained on, not of those held out or the test set.

    Where it reads: ``arrays`` if given; else torchvision's folder in ``root`` (``cifar-10-batches-py`` or
    ``cifar-100-python``) if there is one; else ``ROOT/cifar10.npz`` or ``ROOT/cifar100.npz`` if there is one.
    """

    set_name: ClassVar[CIFARName]

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        arrays: str | os.PathLike[str] | None,
        batch_size: int,
        download: bool,
        validation: int,
        train_samples: int | None,
        test_samples: int | None,
    ) -> None:
        super().__init__(batch_size)
        check_count("validation", validation, 0)
        check_flags(download=download)
        check_count("train_samples", 1 if train_samples is None else train_samples, 1)
        check_count("test_samples", 1 if test_samples is None else test_samples, 1)
        self.root = data_root(root)
        self.arrays = None if arrays is None else self.root / arrays
        self.download = download
        self.validation = validation
        self.train_samples = train_samples
        self.test_samples = test_samples
        self._preprocessing: nn.Module | None = None
        self.save_hyperparameters({
            "arrays": None if arrays is None else recorded_path(arrays),
            "validation": validation,
            "train_samples": train_samples,
            "test_samples": test_samples,
        })

    @abstractmethod
    def fit_preprocessing(self, pixels: Tensor) -> nn.Module:
        """Return the module from bytes to float32 inputs, both ``[batch, 3, 32, 32]``, fitted to images trained on."""

    def training_samples(self, pixels: Tensor, labels: Tensor, preprocessing: nn.Module) -> InMemorySamples:
        """Return the set that is trained on; here the preprocessed images as they are."""
        return InMemorySamples(preprocessed(pixels, preprocessing), labels)

    def preprocessing(self) -> nn.Module:
        """Return the module from pixels to what the model takes; fitted at the first call, if not before."""
        return self._preprocessing or self._fitted(self._read())

    def raw_train_inputs(self) -> Tensor:
        """Return all training images before the preprocessing, ``[samples, 3, 32, 32]``, ``torch.uint8``."""
        return self._read().x_train

    def raw_test_inputs(self) -> Tensor:
        """Return the test images before the preprocessing, ``[samples, 3, 32, 32]``, ``torch.uint8``."""
        return self._read().x_test

    def arrays_file(self) -> Path | None:
        """Return the arrays file that is read, or ``None`` where torchvision's files are."""
        if self.arrays is not None:
            return self.arrays
        default = self.root / f"{self.set_name}.npz"
        return default if is_file(default) and not is_folder(cifar_folder(self.root, self.set_name)) else None

    def prepare_data(self) -> None:
        """Download the set if it is missing and that was asked for; else make sure that it is there."""
        missing = missing_cifar_files(self.root, self.set_name) if self.arrays_file() is None else []
        if missing and not self.download:
            folder, file_name = cifar_folder(self.root, self.set_name), f"{self.set_name}.npz"
            raise DataError(
                f"{self.set_name} is not in {str(folder)!r} (missing: {', '.join(missing)}). Give root=, or set the "
                f"environment variable LIT_GELU_DATA, to the folder that holds {folder.name} or, without it, "
                f"{file_name}; or give arrays= the path of an .npz file; or download it with download=True "
                "(--data.download true)."
            )
        if missing:
            download(READERS[self.set_name], self.root)

    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        """Read the training images, hold some out, and fit the preprocessing on the others."""
        arrays = self._read()
        preprocessing = self._preprocessing or self._fitted(arrays)
        train, val = self._split(len(arrays.x_train))
        return (
            self.training_samples(arrays.x_train[train], arrays.y_train[train], preprocessing),
            InMemorySamples(preprocessed(arrays.x_train[val], preprocessing), arrays.y_train[val]),
        )

    def load_test(self) -> InMemorySamples:
        """Read the test images and preprocess them as the training images say."""
        arrays = self._read()
        return InMemorySamples(preprocessed(arrays.x_test, self.preprocessing()), arrays.y_test)

    def _read(self) -> ImageArrays:
        """Return the first ``train_samples`` and ``test_samples`` images."""
        arrays = self._read_all()
        train, test = slice(self.train_samples), slice(self.test_samples)
        return ImageArrays(arrays.x_train[train], arrays.y_train[train], arrays.x_test[test], arrays.y_test[test])

    def _read_all(self) -> ImageArrays:
        """Return every image, whatever ``train_samples`` and ``test_samples`` are."""
        self.prepare_data()  # files may be missing on a node where Lightning has not called it
        if (file := self.arrays_file()) is None:
            return read_cifar(self.root, self.set_name)
        if self.arrays is None:  # it was found beside the set's folder
            self.save_hyperparameters({"arrays": file.name})
        return read_arrays_file(file, CLASSES[self.set_name])

    def _fitted(self, arrays: ImageArrays) -> nn.Module:
        self._preprocessing = self.fit_preprocessing(arrays.x_train[self._split(len(arrays.x_train))[0]]).eval()
        return self._preprocessing

    def _split(self, samples: int) -> tuple[Tensor, Tensor]:
        """Return the rows that are trained on and those held out, each in order."""
        if self.validation >= samples:
            raise ArgumentError(
                f"validation={self.validation} of {samples} training images would leave none to train on. Give fewer."
            )
        return held_out(samples, self.validation)


def held_out(samples: int, validation: int) -> tuple[Tensor, Tensor]:
    """Choose rows to hold out at random, always the same; return those to train on and these, each in rising order."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(_SPLIT_SEED))
    return order[validation:].sort().values, order[:validation].sort().values


@torch.no_grad()
def preprocessed(pixels: Tensor, preprocessing: nn.Module) -> Tensor:
    """Apply preprocessing to pixels of any number of images, some at a time."""
    inputs = torch.empty(pixels.shape)
    for first in range(0, len(pixels), _CHUNK):
        rows = slice(first, first + _CHUNK)
        inputs[rows] = preprocessing(pixels[rows])
    return inputs


class CIFAR10Data(CIFARData):
    """CIFAR-10 in memory: 50,000 training and 10,000 test images of 32x32 pixels in three colours, ZCA-whitened.

    A batch is ``(images, labels)``: images ``[batch, 3, 32, 32]``, ``torch.float32``; labels ``[batch]``,
    ``torch.int64``, 0 to 9. As Hendrycks and Gimpel's code has it (arXiv 1606.08415, section 3.5; after arXiv
    1602.07868): ``(pixel - 127.5) / 128``, then ZCA whitening (epsilon 1e-5, in the code only) fitted to the
    training images; no augmentation; batches of 100, 500 steps an epoch. The paper chooses the learning rate on 5,000
    held-out images (``validation=5000``; which ones it does not say, here fixed random ones), then trains on all.

    The whitening takes half a minute on one CPU core, and is kept in a file of 75 MB in ``cache``. It is fitted to all
    training images that are not held out, even where ``train_samples`` takes only some: fitted to fewer images than
    they have pixels, it blows others up. Where files are looked for: `lit_gelu.data.CIFARData`.

    Args:
        root: Folder of the files. ``None`` means the environment variable ``LIT_GELU_DATA``, or ``data``.
        arrays: An ``.npz`` file with x_train, y_train, x_test and y_test to read instead, an absolute path or one from
            ``root`` on.
        batch_size: Samples in a batch.
        download: Whether to download the set (170 MB, checked by checksum) where none is there.
        validation: How many training images are held out.
        whiten: Whether the images are whitened, or only scaled.
        cache: Folder that whitenings are kept in; ``None`` means ``lit_gelu`` in the user's cache (``XDG_CACHE_HOME``).
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
        super().__init__(root, arrays, batch_size, download, validation, train_samples, test_samples)
        check_flags(whiten=whiten)
        self.whiten = whiten
        self.cache = None if cache is None else Path(cache)
        self.save_hyperparameters({"whiten": whiten})

    def fit_preprocessing(self, pixels: Tensor) -> nn.Module:
        """Return the scaling and, unless it is off, the whitening."""
        scale = ScaledPixels()
        if not self.whiten:
            return scale
        if self.train_samples is not None:
            everything = self._read_all().x_train
            is_fitted_to = torch.ones(len(everything), dtype=torch.bool)
            is_fitted_to[self._split(min(self.train_samples, len(everything)))[1]] = False
            pixels = everything[is_fitted_to]

        def fit() -> Whitening:
            count, values = len(pixels), pixels[0].numel()
            if count < values:
                warnings.warn(
                    f"The whitening is fitted to {count} images, fewer than the {values} values of each: it blows up "
                    "other images in all directions in which these do not differ, and test errors come out high. Give "
                    "more images, or whiten=False.",
                    stacklevel=2,
                )
            rank_zero_info(f"Fitting the ZCA whitening to {count:,} images (half a minute for 50,000).")
            return fit_whitening(pixels, EPSILON, scale)

        return nn.Sequential(scale, ZCAWhitening(cached_whitening(pixels, EPSILON, self.cache, fit)))


class ScaledPixels(nn.Module):
    """``(pixel - 127.5) / 128``: bytes to [-0.996, 0.996], float32."""

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the scaled pixels."""
        return (pixels.to(torch.float32) - 127.5) / 128


class CIFAR100Data(CIFARData):
    """CIFAR-100 with its 100 fine labels: 100,000 training samples an epoch and 10,000 test images.

    A batch is ``(images, labels)``: images ``[batch, 3, 32, 32]``, ``torch.float32``, pixel / 255 minus the mean image
    of the training set; labels ``[batch]``, ``torch.int64``, 0 to 99. As Hendrycks and Gimpel fed it (arXiv 1606.08415,
    section 3.5; their code, which is Loshchilov and Hutter's, arXiv 1608.03983):

    - An epoch is the 50,000 training images and their mirrored copies, in batches of 128: 781 steps. The paper's "50
      epochs" are 50 x 100,000 samples in its code, 39,050 steps.
    - In training each image is padded with 4 zeros on every side, after the mean is subtracted, and cropped at random.
      Zagoruyko and Komodakis (arXiv 1605.07146), whose net it is, reflect the image at its edges, mirror at random, and
      divide by each channel's standard deviation.
    - No images are held out: the paper looks at the test set after every epoch, here in batches of 500.

    Args:
        root: Folder of the files. ``None`` means the environment variable ``LIT_GELU_DATA``, or ``data``.
        arrays: An ``.npz`` file with x_train, y_train, x_test and y_test to read instead, an absolute path or one from
            ``root`` on. Where files are looked for otherwise: `lit_gelu.data.CIFARData`.
        batch_size: Samples in a training batch.
        download: Whether to download the set (169 MB, checked by checksum) where none is there.
        validation: How many training images are held out: always the same, chosen at random.
        train_samples: Read only so many of the first training images. For quick runs; not the paper's protocol.
        test_samples: Read only so many of the first test images. For quick runs; not the paper's protocol.

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
        download: bool = False,
        validation: int = 0,
        train_samples: int | None = None,
        test_samples: int | None = None,
    ) -> None:
        super().__init__(root, arrays, batch_size, download, validation, train_samples, test_samples)
        self.evaluation_batch_size = 500

    def fit_preprocessing(self, pixels: Tensor) -> nn.Module:
        """Return what takes the mean image away."""
        total = torch.zeros(pixels.shape[1:], dtype=torch.int64)  # in integers, so without rounding errors
        for part in torch.split(pixels, _CHUNK):  # a sum makes int64 of all that it adds up
            total += part.sum(dim=0, dtype=torch.int64)
        return CentredPixels(total.double().div(len(pixels) * 255).float())

    def training_samples(self, pixels: Tensor, labels: Tensor, preprocessing: nn.Module) -> InMemorySamples:
        """Return the `AugmentedImages`, which mirror and crop whenever a batch is taken."""
        return AugmentedImages(pixels, labels, preprocessing)


class CentredPixels(nn.Module):
    """``pixel / 255 - mean``, with the mean image ``[3, 32, 32]`` on the scale of [0, 1]."""

    mean: Tensor

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return centred images."""
        return pixels.to(self.mean.dtype) / 255 - self.mean


class AugmentedImages(InMemorySamples):
    """Images that are preprocessed, mirrored, padded and cropped at random whenever a batch of them is taken."""

    # Of n images, sample i is a crop of image i, and sample n + i is one of image i mirrored left to right. Only the
    # originals are stored, as bytes. Every offset is uniform on 0 to 8 and independent, drawn from the CPU's default
    # generator: the same seed gives the same crops on every device.

    def __init__(self, pixels: Tensor, labels: Tensor, preprocessing: nn.Module) -> None:
        super().__init__(pixels, labels)
        self.preprocessing = deepcopy(preprocessing)  # it follows the images to their device, the original does not

    @property
    def inputs(self) -> Tensor:
        """The originals preprocessed but neither mirrored nor cropped, ``[n, channels, height, width]``, float32."""
        return preprocessed(self.tensors[0], self.preprocessing)

    def move_to(self, device: torch.device) -> None:
        """Move the images, their labels and the preprocessing, so that batches are made there."""
        super().move_to(device)
        self.preprocessing.to(device)

    def __len__(self) -> int:
        return 2 * len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        """Return one sample, newly cropped."""
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    @torch.no_grad()
    def __getitems__(self, indices: list[int]) -> Batch:
        """Return the samples at ``indices``, in that order, newly cropped and stacked."""
        pixels, labels = self.tensors
        positions = torch.arange(len(self))[indices]  # an IndexError ends a loop over the set
        offsets = torch.randint(2 * MARGIN + 1, (2, len(positions))).to(pixels.device)
        is_mirrored = (positions >= len(pixels)).to(pixels.device)
        rows = (positions % len(pixels)).to(pixels.device)
        images = self.preprocessing(pixels[rows])
        images = torch.where(is_mirrored[:, None, None, None], images.flip(3), images)
        return cropped(images, offsets), labels[rows]


def cropped(images: Tensor, offsets: Tensor) -> Tensor:
    """Pad images by 4 zeros on every side and cut a window out of each, at offsets ``[2, batch]`` from 0 to 8."""
    height, width = images.shape[2:]
    padded = functional.pad(images, (MARGIN,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: [batch, channels, 9, 9, height, width]
    return windows[torch.arange(len(images), device=images.device), :, offsets[0], offsets[1]]
