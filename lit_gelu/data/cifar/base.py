"""`CIFARData`: what CIFAR-10 and CIFAR-100 share: where their files are, what is held out, and how pixels are fed."""

import os
from abc import abstractmethod
from copy import deepcopy
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_gelu.arguments import check_count, check_flags
from lit_gelu.data.cifar.files import (
    CLASSES,
    CIFARName,
    ImageArrays,
    cifar_folder,
    download_cifar,
    missing_cifar_files,
    read_arrays_file,
    read_cifar,
)
from lit_gelu.data.in_memory import Batch, InMemoryDataModule, InMemoryImages, InMemorySamples, data_root
from lit_gelu.errors import ArgumentError, DataError
from lit_gelu.files import is_file, is_folder

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
        positions = torch.as_tensor(indices, dtype=torch.int64)
        outside = positions[(positions < -size) | (positions >= size)]
        if len(outside):  # Python ends a loop over the set by this error
            raise IndexError(
                f"Index {int(outside[0])} given, of {size} samples. Give integers from {-size} to {size - 1}."
            )
        positions = positions % size
        offsets = torch.randint(2 * MARGIN + 1, (2, len(positions)))
        is_mirrored = positions >= len(self.pixels)
        if self.random_mirroring:
            is_mirrored ^= torch.rand(len(positions)) < 0.5
        rows = (positions % len(self.pixels)).to(device)
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


_SPLIT_SEED = 0
_CHUNK = 1000  # images preprocessed at a time, so that intermediate results stay small


class CIFARData(InMemoryDataModule):
    """32x32 colour images in memory, out of torchvision's files or an arrays file; a subclass says how they are fed.

    A subclass names its set and writes `fit_preprocessing`, which returns the module that turns pixels into a net's
    inputs; it may write `training_samples`, for augmentation. What preprocessing learns (means, whitening) it learns
    of the images that are trained on: not of those held out, and not of the test set.

    Where it reads: ``arrays`` if given; else torchvision's folder in ``root`` (``cifar-10-batches-py`` or
    ``cifar-100-python``) if there is one; else ``ROOT/cifar10.npz`` or ``ROOT/cifar100.npz`` if there is one.

    Args:
        root: Folder that holds the files. ``None`` means the environment variable ``LIT_GELU_DATA``, or ``data``.
        arrays: An ``.npz`` file of images and labels (`lit_gelu.data.cifar.files.read_arrays_file`) to read instead of
            torchvision's files; an absolute path or one from ``root`` on.
        batch_size: Samples in a training batch.
        download: Whether to download the set with torchvision (170 MB, checked by checksum) where none is there.
        validation: How many training images are held out for validation: always the same, chosen at random.
        train_samples: Read only so many of the first training images, before some are held out. For quick runs: it
            is not the paper's protocol. ``None`` means all.
        test_samples: Read only so many of the first test images. For quick runs. ``None`` means all.

    Raises:
        ArgumentError: If an argument is not accepted.
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
        for name, samples in {"train_samples": train_samples, "test_samples": test_samples}.items():
            if samples is not None:
                check_count(name, samples, 1)
        self.root = data_root(root)
        self.arrays = None if arrays is None else self.root / arrays
        self.download = download
        self.validation = validation
        self.train_samples = train_samples
        self.test_samples = test_samples
        self._preprocessing: nn.Module | None = None
        self.save_hyperparameters({
            "batch_size": batch_size,
            "arrays": None if self.arrays is None else self.arrays.name,
            "validation": validation,
            "train_samples": train_samples,
            "test_samples": test_samples,
        })

    @abstractmethod
    def fit_preprocessing(self, pixels: Tensor) -> nn.Module:
        """Return the module from bytes to float32 inputs, both ``[batch, 3, 32, 32]``, fitted to images trained on."""

    def training_samples(self, pixels: Tensor, labels: Tensor, preprocessing: nn.Module) -> InMemorySamples:
        """Return the set that is trained on; here the preprocessed images as they are."""
        return InMemoryImages(preprocessed(pixels, preprocessing), labels)

    def preprocessing(self) -> nn.Module:
        """Return the module from pixels to what the model takes; fitted at the first call, if not before."""
        if self._preprocessing is not None:
            return self._preprocessing
        pixels = self._read().x_train
        return self._fit(pixels[self._split(len(pixels))[0]])

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
        arrays = self.arrays_file()
        if arrays is not None:
            if not is_file(arrays):
                raise DataError(
                    f"There is no arrays file {str(arrays)!r}. Give arrays= the path of an .npz file, absolute or from "
                    f"root={str(self.root)!r} on."
                )
            return
        missing = missing_cifar_files(self.root, self.set_name)
        if not missing:
            return
        if not self.download:
            folder, file_name = cifar_folder(self.root, self.set_name), f"{self.set_name}.npz"
            arrays_note = f"there is no {file_name} beside it to read instead"
            if is_file(self.root / file_name):
                arrays_note = (
                    f"{file_name} beside it is read only where that folder is not: remove the folder, or give "
                    f"arrays={file_name!r}"
                )
            raise DataError(
                f"{self.set_name} is not in {str(folder)!r} (missing: {', '.join(missing)}), and {arrays_note}. "
                f"Give root=, or set the environment variable LIT_GELU_DATA, to the folder that holds {folder.name} or "
                f"{file_name}; or give arrays= the path of an .npz file; or download it with download=True "
                "(--data.download true)."
            )
        download_cifar(self.root, self.set_name)

    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        """Read the training images, hold some out, and fit the preprocessing on the others."""
        arrays = self._read()
        train, val = self._split(len(arrays.x_train))
        pixels = arrays.x_train[train]
        preprocessing = self._fit(pixels)
        return (
            self.training_samples(pixels, arrays.y_train[train], preprocessing),
            InMemoryImages(preprocessed(arrays.x_train[val], preprocessing), arrays.y_train[val]),
        )

    def load_test(self) -> InMemorySamples:
        """Read the test images and preprocess them as the training images say."""
        preprocessing = self.preprocessing()
        arrays = self._read()
        return InMemoryImages(preprocessed(arrays.x_test, preprocessing), arrays.y_test)

    def _read(self) -> ImageArrays:
        """Return the first ``train_samples`` and ``test_samples`` images."""
        arrays = self._read_all()
        for argument, requested, images in (
            ("train_samples", self.train_samples, arrays.x_train),
            ("test_samples", self.test_samples, arrays.x_test),
        ):
            if requested is not None and requested > len(images):
                raise ArgumentError(f"{argument}={requested} is not accepted: there are {len(images)}. Give fewer.")
        train, test = slice(self.train_samples), slice(self.test_samples)
        return ImageArrays(arrays.x_train[train], arrays.y_train[train], arrays.x_test[test], arrays.y_test[test])

    def _read_all(self) -> ImageArrays:
        """Return every image, whatever ``train_samples`` and ``test_samples`` are."""
        self.prepare_data()  # files may be missing on a node where Lightning has not called it
        file = self.arrays_file()
        if file is None:
            return read_cifar(self.root, self.set_name)
        self.save_hyperparameters({"arrays": file.name})  # also where it was found beside the set's folder
        return read_arrays_file(file, CLASSES[self.set_name])

    def _split(self, samples: int) -> tuple[Tensor, Tensor]:
        """Return the rows that are trained on and those held out, each in order."""
        if self.validation >= samples:
            raise ArgumentError(
                f"validation={self.validation} of {samples} training images would leave none to train on. Give fewer."
            )
        return held_out(samples, self.validation)

    def _fit(self, pixels: Tensor) -> nn.Module:
        if self._preprocessing is None:
            self._preprocessing = self.fit_preprocessing(pixels).eval()
        return self._preprocessing


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
