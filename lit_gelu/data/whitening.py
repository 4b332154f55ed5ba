"""ZCA whitening: pixels decorrelated, brought to one variance and turned back to look like images; kept in a file."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lit_gelu.data.npz import Arrays, kept_arrays

_CHUNK = 4096  # images at once in float64: 100 MB for 32x32 pixels in three colours


class Whitening(NamedTuple):
    """What ZCA whitening subtracts and multiplies by: ``whitened = (x - mean) @ matrix``, both in float64."""

    mean: Tensor  # [pixels], in the order channel, row, column
    matrix: Tensor  # [pixels, pixels], symmetric


def fit_whitening(
    images: Tensor, epsilon: float = 1e-5, scale: Callable[[Tensor], Tensor] = Tensor.double
) -> Whitening:
    """Fit ZCA whitening to images ``[N, ...]``; ``scale`` makes of some of them pixels to be whitened."""
    # With the covariance X^T X / N = U diag(S) U^T of the centred images (rows of X), the matrix is U diag(1 / sqrt(S +
    # epsilon)) U^T, all in float64: the whitened images' covariance is the identity where S is much larger than
    # epsilon. Directions in which fewer images than pixels do not differ are multiplied by 1 / sqrt(epsilon), so that
    # other images come out of it with large values. Source: Hendrycks and Gimpel 2016, arXiv 1606.08415, section 3.5,
    # after Salimans and Kingma 2016, arXiv 1602.07868; epsilon from their code. Bell and Sejnowski 1997, "The
    # independent components of natural scenes are edge filters".

    def rows(part: Tensor) -> Tensor:
        return scale(part).flatten(start_dim=1).double()

    parts = torch.split(images, _CHUNK)
    mean = torch.stack([rows(part).sum(dim=0) for part in parts]).sum(dim=0) / len(images)
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=mean.device)
    for part in parts:
        centred = rows(part) - mean
        covariance.addmm_(centred.T, centred, alpha=1 / len(images))
    variances, directions = torch.linalg.eigh(covariance)
    return Whitening(mean, (directions * (variances.clamp(min=0) + epsilon).rsqrt()) @ directions.T)


class ZCAWhitening(nn.Module):
    """``(x - mean) @ matrix``, to stand in front of a net, with mean and matrix as buffers in float32."""

    # Differs from float64's result by about 3e-6 on CIFAR-10, where the variance is 1.

    mean: Tensor
    matrix: Tensor

    def __init__(self, whitening: Whitening) -> None:
        super().__init__()
        self.register_buffer("mean", whitening.mean.float())
        self.register_buffer("matrix", whitening.matrix.float())

    def forward(self, images: Tensor) -> Tensor:
        """Return the whitened images."""
        return ((images.flatten(start_dim=1) - self.mean) @ self.matrix).reshape(images.shape)


_METHOD = "ZCA 1"  # part of every digest; another method, or another layout of the file, gets another number


def cached_whitening(raw: Tensor, epsilon: float, folder: Path | None, fit: Callable[[], Whitening]) -> Whitening:
    """Return the whitening that is kept for these training pixels and epsilon, or fit and keep it."""
    # A file has 75 MB for 32x32 pixels in three colours.

    def compute() -> Arrays:
        return {name: tensor.cpu().numpy() for name, tensor in fit()._asdict().items()}

    digest = hashlib.sha256(f"{_METHOD} {epsilon!r} {list(raw.shape)} {raw.dtype}".encode())
    digest.update(raw.contiguous().numpy().data)
    arrays = kept_arrays(f"zca-{digest.hexdigest()[:32]}", folder, Whitening._fields, compute)
    return Whitening(**{name: torch.from_numpy(array) for name, array in arrays.items()})
