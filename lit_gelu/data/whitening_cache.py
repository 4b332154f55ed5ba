"""Fitted whitenings kept in files: fitting 50,000 images takes half a minute, reading the file a tenth of a second."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lit_gelu.data.kept_arrays import kept_arrays
from lit_gelu.data.npz import Arrays
from lit_gelu.data.whitening import Whitening

_METHOD = "ZCA 1"  # part of every key: another method or layout of the file gets another number


def cached_whitening(raw: Tensor, epsilon: float, folder: Path | None, fit: Callable[[], Whitening]) -> Whitening:
    """Return the whitening that is kept for these pixels, or fit and keep it.

    The file is ``zca-KEY.npz`` with ``mean`` and ``matrix`` in float64, 75 MB for 32x32 pixels in three colours. KEY is
    a digest of the pixels' content, their shape and epsilon.

    Args:
        raw: The training pixels, ``torch.uint8``.
        epsilon: The epsilon of the fit.
        folder: Where the file lies; ``None`` as for `lit_gelu.data.kept_arrays.kept_arrays`.
        fit: Computes the whitening.

    Returns:
        The mean and the matrix.

    Raises:
        UnwritablePathError: If ``folder`` is given and cannot be written to.

    Example:
        >>> import tempfile
        >>> from lit_gelu.data.whitening import fit_whitening
        >>> raw, folder = torch.tensor([[0, 4], [2, 0]], dtype=torch.uint8), Path(tempfile.mkdtemp())
        >>> fitted = cached_whitening(raw, 1e-5, folder, lambda: fit_whitening(raw))
        >>> def never():
        ...     raise AssertionError
        >>> torch.equal(cached_whitening(raw, 1e-5, folder, never).matrix, fitted.matrix)
        True
    """
    pixels = raw[0].numel()

    def is_whole(arrays: Arrays) -> bool:
        shapes = {name: array.shape for name, array in arrays.items()}
        is_double = all(array.dtype == np.float64 for array in arrays.values())
        return is_double and shapes == {"mean": (pixels,), "matrix": (pixels, pixels)}

    def compute() -> Arrays:
        whitening = fit()
        return {"mean": whitening.mean.cpu().numpy(), "matrix": whitening.matrix.cpu().numpy()}

    arrays = kept_arrays(f"zca-{_key(raw, epsilon)}", folder, is_whole, compute)
    return Whitening(torch.from_numpy(arrays["mean"]), torch.from_numpy(arrays["matrix"]))


def _key(raw: Tensor, epsilon: float) -> str:
    """Return the digest that names the file."""
    digest = hashlib.sha256(f"{_METHOD} {epsilon!r} {list(raw.shape)} {raw.dtype}".encode())
    digest.update(raw.contiguous().numpy().data)
    return digest.hexdigest()[:32]
