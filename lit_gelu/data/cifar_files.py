"""Files of the CIFAR sets: torchvision's Python batches with their checksums, and an ``.npz`` file of arrays."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100

from lit_gelu.data.npz import Arrays, load_arrays
from lit_gelu.errors import DataError
from lit_gelu.files import is_file

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
CONTENTS = f"{', '.join(ARRAYS)} (images uint8 [samples, 32, 32, 3], labels integers [samples])"
CIFARName = Literal["cifar10", "cifar100"]
CLASSES: dict[CIFARName, int] = {"cifar10": 10, "cifar100": 100}
READERS: dict[CIFARName, Any] = {"cifar10": CIFAR10, "cifar100": CIFAR100}


class ImageArrays(NamedTuple):
    """Images, ``[samples, 3, 32, 32]``, ``torch.uint8``, and labels, ``[samples]``, ``torch.int64``."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def read_arrays_file(path: Path, classes: int) -> ImageArrays:
    """Read training and test images, ``[samples, 3, 32, 32]``, and their labels from an ``.npz`` file."""
    # Images are uint8, ``[samples, 32, 32, 3]`` (as Keras has them) or ``[samples, 3, 32, 32]`` (as torch has them):
    # the shape tells which. Labels are integers from 0 on, ``[samples]`` or, as Keras has them, ``[samples, 1]``.
    # Other arrays in the file are not looked at, and nothing in it is unpickled.
    if not is_file(path):
        raise DataError(f"There is no file {str(path)!r}. Give the path of an .npz file of {CONTENTS}.")
    try:
        arrays = load_arrays(path, ARRAYS)
    except DataError as error:
        raise DataError(f"{error} Expected: {CONTENTS}.") from error
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise DataError(f"{str(path)!r} lacks {', '.join(missing)}. Write {CONTENTS} with numpy.savez_compressed.")
    return ImageArrays(*_part(arrays, "train", classes, path), *_part(arrays, "test", classes, path))


def _part(arrays: Arrays, part: str, classes: int, path: Path) -> tuple[Tensor, Tensor]:
    """Return images as ``[samples, 3, 32, 32]`` and labels as ``[samples]``, ``torch.int64``."""
    images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if images.dtype != np.uint8 or images.shape[1:] not in {(32, 32, 3), (3, 32, 32)} or not len(images):
        raise DataError(
            f"x_{part} in {str(path)!r} has shape {list(images.shape)} and dtype {images.dtype}; accepted: at least "
            "one image, [samples, 32, 32, 3] or [samples, 3, 32, 32], uint8 (0 to 255). Resize or convert the images."
        )
    samples = len(images)
    if labels.dtype.kind not in "iu" or labels.shape not in {(samples,), (samples, 1)}:
        raise DataError(
            f"y_{part} in {str(path)!r} has shape {list(labels.shape)} and dtype {labels.dtype}; accepted: an integer "
            f"for each of the {samples} images, of shape [{samples}] or [{samples}, 1]. Write the labels so."
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise DataError(
            f"y_{part} in {str(path)!r} holds labels from {lowest} to {highest}; accepted: 0 to {classes - 1}. Number "
            "the classes from 0 on, or give a file of another data set."
        )
    if images.shape[1:] == (32, 32, 3):
        images = images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels.astype(np.int64).reshape(samples))


def cifar_folder(root: Path, name: CIFARName) -> Path:
    """Return the folder of a set's files: ``root/cifar-10-batches-py`` or ``root/cifar-100-python``."""
    return root / str(READERS[name].base_folder)


def missing_cifar_files(root: Path, name: CIFARName) -> list[str]:
    """Return the names of the files that a set lacks."""
    reader = READERS[name]
    files = [file for file, _ in (*reader.train_list, *reader.test_list)]
    return [file for file in (*files, reader.meta["filename"]) if not is_file(cifar_folder(root, name) / file)]


def read_cifar(root: Path, name: CIFARName) -> ImageArrays:
    """Read CIFAR-10, or CIFAR-100 with its fine labels (Krizhevsky 2009), out of torchvision's files."""
    # The files are pickles, which could run any program when they are read: torchvision compares their MD5 sums first.
    tensors: list[Tensor] = []
    try:
        for is_training in (True, False):
            part = READERS[name](root, train=is_training)
            tensors += [torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(part.targets)]
    except RuntimeError as error:
        raise DataError(
            f"Files in {str(cifar_folder(root, name))!r} are missing, damaged or not the published ones, and were not "
            "unpickled. Delete the folder and download it again (download=True), or put good copies in their place; "
            "images of your own go in an arrays file (arrays=)."
        ) from error
    return ImageArrays(*tensors)
