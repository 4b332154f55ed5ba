"""DigitsData against scikit-learn's own arrays."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from lit_gelu.data import DigitsData
from lit_gelu.data.digits import EnlargedDigits


@pytest.fixture(scope="module")
def data():
    data = DigitsData()
    data.setup()
    return data


def sets(data):
    return data.train_set, data.val_set, data.test_set


def test_counts_shapes_dtypes_and_range(data):
    assert [len(part) for part in sets(data)] == [1257, 180, 360]
    assert len(data.train_dataloader()) == 39
    for part in sets(data):
        assert part.inputs.shape == (len(part), 1, 28, 28)
        assert part.inputs.dtype == torch.float32
        assert part.labels.dtype == torch.int64
        assert part.inputs.min() == 0
        assert part.inputs.max() == 1


def test_every_digit_is_in_exactly_one_set_with_its_label(data):
    digits = load_digits()
    everything = EnlargedDigits()(torch.from_numpy(digits.images).unsqueeze(1)).flatten(1).numpy()
    ours = torch.cat([part.inputs for part in sets(data)]).flatten(1).numpy()
    our_labels = torch.cat([part.labels for part in sets(data)]).numpy()
    assert len(ours) == len(everything) == 1797
    # Sorting rows puts the two in the same order whatever the split did.
    np.testing.assert_array_equal(ours[np.lexsort(ours.T)], everything[np.lexsort(everything.T)])
    np.testing.assert_array_equal(our_labels[np.lexsort(ours.T)], digits.target[np.lexsort(everything.T)])


def test_the_split_is_stratified(data):
    shares = np.bincount(load_digits().target) / 1797
    for part in sets(data):
        counts = part.labels.bincount(minlength=10).numpy()
        np.testing.assert_allclose(counts, shares * len(part), atol=1)


def test_raw_grey_levels_and_their_preprocessing_give_the_test_images(data):
    raw = data.raw_test_inputs()
    assert (raw.shape, raw.dtype) == ((360, 1, 8, 8), torch.uint8)
    assert raw.max() == 16
    assert torch.equal(data.preprocessing()(raw), data.test_set.inputs)
    training = data.raw_train_inputs()
    assert torch.equal(data.preprocessing()(training), data.train_set.inputs)
