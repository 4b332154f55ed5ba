"""drawing.js: from ink to the bytes that a net of MNIST or of scikit-learn's digits takes."""

import numpy as np
import pytest
from scipy import ndimage
from scipy.interpolate import RegularGridInterpolator

pytestmark = pytest.mark.full

CALL = """
const [name, ink, ...rest] = args;
const { [name]: f } = await import("/drawing.js");
const found = f(Float32Array.from(ink), ...rest);
return ArrayBuffer.isView(found) ? Array.from(found) : found;
"""


def call(page, name, ink, *arguments):
    return page.run(CALL, name, ink.ravel().tolist(), ink.shape[1], *arguments)


def blob(seed, height=70, width=90):
    """Return smooth ink of irregular shape, away from the edges."""
    noise = np.random.default_rng(seed).normal(size=(height, width))
    noise[:8], noise[-8:], noise[:, :8], noise[:, -8:] = 0, 0, 0, 0
    return np.float32(np.clip(ndimage.gaussian_filter(noise, 4) * 12 - 0.2, 0, 1))


def means_by_integral(ink, left, top, cell_width, cell_height, cells):
    """Return the cells' means from the integral over [0, x] x [0, y], which is bilinear within a pixel."""
    height, width = ink.shape
    total = np.zeros((height + 1, width + 1))
    total[1:, 1:] = ink.astype(np.float64).cumsum(0).cumsum(1)
    integral = RegularGridInterpolator((np.arange(height + 1), np.arange(width + 1)), total)
    y = np.clip(top + cell_height * np.arange(cells + 1), 0, height)
    x = np.clip(left + cell_width * np.arange(cells + 1), 0, width)
    corners = integral(np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1))
    return np.diff(np.diff(corners, axis=0), axis=1) / (cell_width * cell_height)


@pytest.mark.parametrize("grid", [(3.7, 11.2, 2.9, 1.3), (-20.5, -9.0, 7.3, 8.1), (10.0, 10.0, 2.0, 2.0)])
def test_means_over_cells(page, grid):
    ink = blob(0)
    names = ("left", "top", "cellWidth", "cellHeight")
    means = call(page, "cellMeans", ink, dict(zip(names, grid, strict=True)), 13)
    assert np.allclose(np.reshape(means, (13, 13)), means_by_integral(ink, *grid, 13), atol=1e-9)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mnist(page, seed):
    ink = blob(seed)
    rows, columns = (np.flatnonzero(ink.any(axis=axis)) for axis in (1, 0))
    size = max(np.ptp(rows) + 1, np.ptp(columns) + 1) / 20
    y, x = np.array(ndimage.center_of_mass(ink)) + 0.5  # scipy counts from the middle of the first pixel
    pixels = np.reshape(call(page, "mnistPixels", ink), (28, 28))
    expected = 255 * means_by_integral(ink, x - 14 * size, y - 14 * size, size, size, 28)
    assert np.abs(pixels - expected).max() <= 0.5 + 1e-6


def test_digits_are_counts_of_dark_pixels_in_blocks(page):
    bitmap = np.zeros((40, 60), np.float32)
    drawn = np.random.default_rng(0).random((32, 24)) < 0.5
    drawn[0, 0] = drawn[-1, -1] = True  # so that the box is 32 high and 24 wide: 8 by 6 blocks of 4 by 4
    bitmap[5:37, 20:44] = drawn
    counts = drawn.reshape(8, 4, 6, 4).sum(axis=(1, 3))
    assert np.array_equal(np.reshape(call(page, "digitsPixels", bitmap), (8, 8)), np.pad(counts, ((0, 0), (1, 1))))
