"""Mean and deviation over the training frames, of the padded array as an option."""

import numpy as np
import torch

from lit_gelu.data.timit.normalisation import NormaliseFrames, fit_normalisation

LENGTHS = [3, 7, 5]


def test_statistics_of_the_valid_frames():
    features = np.random.default_rng(0).normal(5, 3, (15, 26))
    ours = fit_normalisation(torch.from_numpy(features), torch.tensor(LENGTHS))
    np.testing.assert_allclose(ours.mean, features.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(ours.deviation, features.std(axis=0), rtol=1e-6)


def test_statistics_of_the_padded_array():
    """The paper's code: mean and deviation over axes 0 and 1 of [sentences, longest, 26], padded on the left."""
    features = np.random.default_rng(0).normal(5, 3, (15, 26))
    padded = np.zeros((3, 7, 26))
    for number, part in enumerate(np.split(features, np.cumsum(LENGTHS)[:-1])):
        padded[number, 7 - len(part) :] = part
    ours = fit_normalisation(torch.from_numpy(features), torch.tensor(LENGTHS), padded=True)
    np.testing.assert_allclose(ours.mean, padded.mean(axis=(0, 1)), rtol=1e-6)
    np.testing.assert_allclose(ours.deviation, padded.std(axis=(0, 1)), rtol=1e-6)


def test_a_constant_feature_does_not_become_infinite():
    normalisation = fit_normalisation(torch.ones(4, 1), torch.tensor([4]))
    assert NormaliseFrames(normalisation)(torch.ones(2, 11)).tolist() == [[0.0] * 11] * 2
