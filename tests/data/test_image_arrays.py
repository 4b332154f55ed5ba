"""Arrays files: both layouts of images, both shapes of labels, and every kind of spoilt file."""

import numpy as np
import pytest
import torch
from cifar_arrays import random_arrays

from lit_gelu.data.cifar.files import read_arrays_file
from lit_gelu.errors import DataError


@pytest.fixture
def written(tmp_path):
    """Write an arrays file with some arrays replaced (None leaves one out) and return its path."""

    def write(**replaced):
        arrays = {**random_arrays(4, 3, 3), **replaced}
        path = tmp_path / "own.npz"
        np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})
        return path

    return write


def test_images_and_labels_as_they_were_written(written):
    arrays = random_arrays(4, 3, 3)
    read = read_arrays_file(written(), 3)
    for part in ("train", "test"):
        images, labels = getattr(read, f"x_{part}"), getattr(read, f"y_{part}")
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        assert images.is_contiguous()
        assert images[2, 1, 5, 7] == arrays[f"x_{part}"][2, 5, 7, 1]
        assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), arrays[f"x_{part}"])
        assert np.array_equal(labels.numpy(), arrays[f"y_{part}"])


def test_both_layouts_and_both_shapes_of_labels_are_the_same_data(written):
    arrays = random_arrays(4, 3, 3)
    first = read_arrays_file(written(), 3)
    again = read_arrays_file(
        written(
            x_train=arrays["x_train"].transpose(0, 3, 1, 2),
            y_train=arrays["y_train"].reshape(-1, 1).astype(np.uint8),
            coarse_train=np.zeros(4),
        ),
        3,
    )
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


OBJECTS = np.empty(4, dtype=object)


@pytest.mark.parametrize(
    "replaced",
    [
        {"x_test": None, "y_test": None},
        {"x_train": np.zeros((4, 32, 32, 3))},
        {"x_train": np.zeros((4, 28, 28, 3), np.uint8)},
        {"x_train": np.zeros((4, 32, 32), np.uint8)},
        {"x_test": np.zeros((0, 32, 32, 3), np.uint8)},
        {"y_train": np.zeros(3, int)},
        {"y_train": np.zeros((4, 3), int)},
        {"y_train": np.zeros(4)},
        {"y_train": np.array([0, 1, 2, 3])},
        {"y_train": np.array([0, 1, 2, -1])},
        {"y_train": OBJECTS},
    ],
)
def test_arrays_that_are_refused(written, replaced):
    with pytest.raises(DataError):
        read_arrays_file(written(**replaced), 3)
