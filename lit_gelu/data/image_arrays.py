"""Images and labels as arrays: an ``.npz`` file with x_train, y_train, x_test and y_test."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lit_gelu.data.errors import CorruptDataError, DataNotFoundError
from lit_gelu.data.npz import Arrays, load_arrays
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
    found = _load(path)
    x_train, y_train, x_test, y_test = (found[name] for name in ARRAYS)
    return ImageArrays(
        _images(x_train, "x_train", path),
        _labels(y_train, "y_train", len(x_train), classes, path),
        _images(x_test, "x_test", path),
        _labels(y_test, "y_test", len(x_test), classes, path),
    )


def _load(path: Path) -> Arrays:
    """Return the arrays of the file as they are."""
    if not is_file(path):
        raise DataNotFoundError(f"There is no file {str(path)!r}. Give the path of an .npz file of {_contents()}.")
    try:
        found = load_arrays(path, ARRAYS)
    except CorruptDataError as error:
        raise CorruptDataError(f"{error} Expected: {_contents()}.") from error
    missing = [name for name in ARRAYS if name not in found]
    if missing:
        raise CorruptDataError(
            f"{str(path)!r} lacks {', '.join(missing)}. Write {_contents()} with numpy.savez_compressed."
        )
    return found


def _images(array: _Array, name: str, path: Path) -> Tensor:
    """Return images as ``[samples, 3, 32, 32]``."""
    channels_last, channels_first = (SIZE, SIZE, CHANNELS), (CHANNELS, SIZE, SIZE)
    if array.dtype != np.uint8 or array.shape[1:] not in {channels_last, channels_first} or not len(array):
        raise CorruptDataError(
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
        raise CorruptDataError(
            f"{name} in {str(path)!r} has shape {list(array.shape)} and dtype {array.dtype}; accepted: one integer for "
            f"each of the {samples} images, of shape [{samples}] or [{samples}, 1]. Write the labels so."
        )
    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0 or highest >= classes:
        raise CorruptDataError(
            f"{name} in {str(path)!r} holds labels from {lowest} to {highest}; accepted: 0 to {classes - 1}, for "
            f"{classes} classes. Number the classes from 0 on, or give a file of another data set."
        )
    return torch.from_numpy(array.astype(np.int64).reshape(samples))


def _contents() -> str:
    return f"{', '.join(ARRAYS)} (images uint8 [samples, {SIZE}, {SIZE}, {CHANNELS}], labels integers [samples])"
