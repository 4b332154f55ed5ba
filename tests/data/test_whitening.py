"""ZCA whitening against scipy's singular values, and the files that it is kept in."""

from unittest.mock import Mock

import numpy as np
import pytest
import scipy.linalg
import torch

from lit_gelu.data.whitening import Whitening, ZCAWhitening, cached_whitening, fit_whitening

EPSILON = 1e-2


def correlated(count, shape=(3, 4, 5), seed=0):
    """Images of normal numbers with variances from 1e-4 to 4 in random directions, around a mean that is not 0."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    directions, _ = np.linalg.qr(rng.standard_normal((size, size)))
    values = rng.standard_normal((count, size)) * np.geomspace(1e-2, 2, size) @ directions.T
    return torch.from_numpy(values + rng.standard_normal(size)).reshape(count, *shape)


def by_svd(images, epsilon):
    """The definition: U diag(1 / sqrt(S + epsilon)) U^T with the left singular vectors of the covariance."""
    rows = images.reshape(len(images), -1).numpy().astype(np.float64)
    mean = rows.mean(axis=0)
    covariance = (rows - mean).T @ (rows - mean) / len(rows)
    directions, variances, _ = scipy.linalg.svd(covariance)
    return mean, directions @ np.diag(1 / np.sqrt(variances + epsilon)) @ directions.T


@pytest.mark.parametrize("count", [500, 60, 7, 1])
def test_mean_and_matrix_against_scipy(count):
    """60 values an image: of fewer images the covariance is singular."""
    images = correlated(count)
    whitening = fit_whitening(images, EPSILON)
    mean, matrix = by_svd(images, EPSILON)
    assert whitening.mean.dtype == whitening.matrix.dtype == torch.float64
    np.testing.assert_allclose(whitening.mean.numpy(), mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(whitening.matrix.numpy(), matrix, rtol=0, atol=1e-11)
    np.testing.assert_allclose(whitening.matrix.numpy(), whitening.matrix.numpy().T, rtol=0, atol=1e-12)


def test_the_module_does_the_same_and_its_buffers_are_saved():
    images = correlated(100).float()
    whitening = fit_whitening(images, EPSILON)
    step = ZCAWhitening(whitening)
    expected = torch.from_numpy(
        (images.double().reshape(100, -1).numpy() - by_svd(images, EPSILON)[0]) @ by_svd(images, EPSILON)[1]
    ).reshape(images.shape)
    torch.testing.assert_close(step(images).double(), expected, rtol=0, atol=1e-4)
    assert step(images).dtype == torch.float32
    other = ZCAWhitening(Whitening(torch.zeros(60).double(), torch.eye(60).double()))
    other.load_state_dict(step.state_dict())
    assert torch.equal(other(images), step(images))


def test_other_pixels_shape_or_epsilon_are_another_file(tmp_path):
    raw = torch.randint(256, (30, 3, 2, 2), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    changed = raw.clone()
    changed[-1, -1, -1, -1] ^= 1
    for pixels, epsilon in ((raw, 1e-2), (changed, 1e-2), (raw[:-1], 1e-2), (raw.flatten(2), 1e-2), (raw, 2e-2)):
        fit = Mock(side_effect=lambda pixels=pixels, epsilon=epsilon: fit_whitening(pixels, epsilon))
        for _ in range(2):
            cached_whitening(pixels, epsilon, tmp_path, fit)
        fit.assert_called_once()  # the second time it is read
    assert len(list(tmp_path.iterdir())) == 5
