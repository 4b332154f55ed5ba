"""Crops and mirrored copies: against loops over samples and pixels, and against their distributions."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

from lit_gelu.data.cifar.base import AugmentedImages, cropped


def slow_crop(image, row, column, padding):
    """Pixel by pixel: what lies at row + i - 4, column + j - 4 of the image."""
    channels, height, width = image.shape
    result = torch.zeros_like(image)
    for channel in range(channels):
        for i in range(height):
            for j in range(width):
                y, x = row + i - 4, column + j - 4
                if padding == "reflect":  # about the middle of the outermost pixel
                    y, x = (min(abs(at), 2 * (size - 1) - abs(at)) for at, size in ((y, height), (x, width)))
                if 0 <= y < height and 0 <= x < width:
                    result[channel, i, j] = image[channel, y, x]
    return result


@pytest.mark.parametrize("padding", ["zeros", "reflect"])
def test_crops_at_all_offsets_against_a_loop_over_pixels(padding):
    images = torch.randn(81, 2, 9, 7)
    offsets = torch.cartesian_prod(torch.arange(9), torch.arange(9)).T
    expected = [slow_crop(image, row, column, padding) for image, (row, column) in zip(images, offsets.T, strict=True)]
    assert torch.equal(cropped(images, offsets, padding), torch.stack(expected))


def places(samples):
    """Images whose only pixel above 0 is a 1 at row 16, column 12 of 32x32; after a crop it says where it was cut."""
    pixels = torch.zeros(samples, 1, 32, 32, dtype=torch.uint8)
    pixels[:, :, 16, 12] = 1
    return pixels


class AsFloat(nn.Module):
    def forward(self, pixels):
        return pixels.float()


def cuts(images):
    """The rows and columns of the ones."""
    assert images.flatten(1).sum(dim=1).eq(1).all()
    found = images.flatten(1).argmax(dim=1)
    return found // 32, found % 32


def test_offsets_are_uniform_and_independent_and_the_second_half_is_mirrored():
    data = AugmentedImages(places(8100), torch.zeros(8100, dtype=torch.int64), AsFloat())
    assert len(data) == 16_200
    for first, column_of in ((0, 12), (8100, 31 - 12)):
        images, _ = data.__getitems__(list(range(first, first + 8100)))
        rows, columns = cuts(images)
        row_offsets, column_offsets = 16 + 4 - rows, column_of + 4 - columns
        counts = torch.bincount(row_offsets * 9 + column_offsets, minlength=81)
        assert len(counts) == 81
        assert stats.chisquare(counts.numpy()).pvalue > 1e-4  # 81 pairs, each with the same share
        neighbours = torch.stack([row_offsets[:-1] * 9 + row_offsets[1:], column_offsets[:-1] * 9 + column_offsets[1:]])
        for pairs in neighbours:  # nor do neighbouring samples share them
            assert stats.chisquare(torch.bincount(pairs, minlength=81).numpy()).pvalue > 1e-4


def test_random_mirroring_mirrors_half():
    labels = torch.zeros(8000, dtype=torch.int64)
    data = AugmentedImages(places(8000), labels, AsFloat(), mirrored_copies=False, random_mirroring=True)
    assert len(data) == 8000
    images, _ = data.__getitems__(list(range(8000)))
    # Columns 8 to 16 as it is, 15 to 23 mirrored: those below 15 are certainly not, 7 of 9 offsets.
    straight = cuts(images)[1].lt(15).sum().item()
    assert abs(straight - 8000 * 7 / 18) < 4 * math.sqrt(8000 * 7 / 18 * 11 / 18)


class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.linspace(0, 1, 32).expand(3, 32, 32).clone())

    def forward(self, pixels):
        return pixels / 255 - self.mean


def test_a_batch_against_a_loop_over_samples():
    """Preprocess, then mirror, then pad with zeros, then crop; the mean image is not symmetric, so order matters."""
    pixels = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    data = AugmentedImages(pixels, torch.arange(6), Centre())
    indices = [7, 0, 11, 5, 1]
    torch.manual_seed(3)
    images, labels = data.__getitems__(indices)
    torch.manual_seed(3)
    offsets = torch.randint(9, (2, 5))
    for row, index in enumerate(indices):
        image = pixels[index % 6] / 255 - Centre().mean
        image = image.flip(2) if index >= 6 else image
        assert torch.equal(images[row], slow_crop(image, *offsets[:, row].tolist(), "zeros"))
    assert labels.tolist() == [1, 0, 5, 5, 1]
    assert images.dtype == torch.float32
