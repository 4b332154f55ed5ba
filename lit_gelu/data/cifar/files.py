"""Files of the CIFAR sets: torchvision's Python batches with their checksums, and an ``.npz`` file of arrays."""

from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.error import URLError

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.datasets.utils import check_integrity

from lit_gelu.data.npz import Arrays, load_arrays
from lit_gelu.errors import DataError
from lit_gelu.files import is_file

SIZE = 32
CHANNELS = 3
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_Array = npt.NDArray[np.generic]


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
    arrays = _load(path)
    x_train, y_train, x_test, y_test = (arrays[name] for name in ARRAYS)
    return ImageArrays(
        _images(x_train, "x_train", path),
        _labels(y_train, "y_train", len(x_train), classes, path),
        _images(x_test, "x_test", path),
        _labels(y_test, "y_test", len(x_test), classes, path),
    )


def _load(path: Path) -> Arrays:
    """Return the arrays of the file as they are."""
    if not is_file(path):
        raise DataError(f"There is no file {str(path)!r}. Give the path of an .npz file of {_contents()}.")
    try:
        arrays = load_arrays(path, ARRAYS)
    except DataError as error:
        raise DataError(f"{error} Expected: {_contents()}.") from error
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        raise DataError(f"{str(path)!r} lacks {', '.join(missing)}. Write {_contents()} with numpy.savez_compressed.")
    return arrays


def _images(array: _Array, name: str, path: Path) -> Tensor:
    """Return images as ``[samples, 3, 32, 32]``."""
    channels_last, channels_first = (SIZE, SIZE, CHANNELS), (CHANNELS, SIZE, SIZE)
    if array.dtype != np.uint8 or array.shape[1:] not in {channels_last, channels_first} or not len(array):
        raise DataError(
            f"{name} in {str(path)!r} has shape {list(array.shape)} and dtype {array.dtype}; accepted: at least one "
            f"image, {['samples', *channels_last]} or {['samples', *channels_first]}, uint8 (0 to 255). Resize or "
            "convert the images.".replace("'", "")
        )
    if array.shape[1:] == channels_last:
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(array))


def _labels(array: _Array, name: str, samples: int, classes: int, path: Path) -> Tensor:
    """Return labels as ``[samples]``, ``torch.int64``."""
    if array.dtype.kind not in "iu" or array.shape not in {(samples,), (samples, 1)}:
        raise DataError(
            f"{name} in {str(path)!r} has shape {list(array.shape)} and dtype {array.dtype}; accepted: one integer for "
            f"each of the {samples} images, of shape [{samples}] or [{samples}, 1]. Write the labels so."
        )
    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0 or highest >= classes:
        raise DataError(
            f"{name} in {str(path)!r} holds labels from {lowest} to {highest}; accepted: 0 to {classes - 1}, for "
            f"{classes} classes. Number the classes from 0 on, or give a file of another data set."
        )
    return torch.from_numpy(array.astype(np.int64).reshape(samples))


def _contents() -> str:
    return f"{', '.join(ARRAYS)} (images uint8 [samples, {SIZE}, {SIZE}, {CHANNELS}], labels integers [samples])"


CIFARName = Literal["cifar10", "cifar100"]
CLASSES: dict[CIFARName, int] = {"cifar10": 10, "cifar100": 100}
_READERS: dict[CIFARName, Any] = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def cifar_folder(root: Path, name: CIFARName) -> Path:
    """Return the folder of a set's files: ``root/cifar-10-batches-py`` or ``root/cifar-100-python``."""
    return root / str(_READERS[name].base_folder)


def missing_cifar_files(root: Path, name: CIFARName) -> list[str]:
    """Return the names of the files that a set lacks."""
    folder = cifar_folder(root, name)
    return [file for file, _ in _checksums(name) if not is_file(folder / file)]


def read_cifar(root: Path, name: CIFARName) -> ImageArrays:
    """Read CIFAR-10, or CIFAR-100 with its fine labels (Krizhevsky 2009), out of torchvision's files."""
    # The files are pickles, which could run any program when they are read. So their MD5 sums, which torchvision has
    # lists of, are compared first: of files with a wrong one, nothing is unpickled.
    folder = cifar_folder(root, name)
    missing = missing_cifar_files(root, name)
    if missing:
        raise DataError(
            f"{str(folder)!r} lacks {', '.join(missing)}. Put the files there, or download them with download=True."
        )
    spoilt = [file for file, checksum in _checksums(name) if not check_integrity(folder / file, checksum)]
    if spoilt:
        raise DataError(
            f"Wrong checksum of {', '.join(spoilt)} in {str(folder)!r}: truncated, damaged or not the published "
            "files, so they were not unpickled. Delete the folder and download it again (download=True), or put good "
            "copies in their place; images of your own go in an arrays file (arrays=)."
        )
    return ImageArrays(*_read_part(root, name, train=True), *_read_part(root, name, train=False))


def download_cifar(root: Path, name: CIFARName) -> None:
    """Download a set with torchvision, which shows progress, and unpack it; files that are right stay as they are."""
    try:
        _READERS[name](root, download=True)
    except (RuntimeError, URLError, OSError, EOFError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{name} could not be downloaded to {str(cifar_folder(root, name))!r}: {reason}. Check the network and "
            "that the folder may be written to, or put the files there."
        ) from error


def _checksums(name: CIFARName) -> list[tuple[str, str]]:
    """Return each file's name and MD5 sum."""
    reader = _READERS[name]
    batches = [(file, checksum) for file, checksum in reader.train_list + reader.test_list]
    return [*batches, (reader.meta["filename"], reader.meta["md5"])]


def _read_part(root: Path, name: CIFARName, *, train: bool) -> tuple[Tensor, Tensor]:
    part = _READERS[name](root, train=train)  # it compares the checksums once more before it unpickles
    images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor(part.targets, dtype=torch.int64)
