"""The values that an activation alone is run on."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

STRIDE = 16411  # a prime: every binade is met at other mantissas; about 260,000 values
SPECIAL: tuple[tuple[str, float], ...] = (
    ("-inf", -np.inf),
    ("inf", np.inf),
    ("nan", np.nan),
    ("-0", -0.0),
    ("0", 0.0),
)


@cache
def all_values(dtype: torch.dtype) -> Tensor:
    """Return every value of a 16-bit dtype, infinities and NaNs included, in the order of its bit patterns.

    Args:
        dtype: ``torch.float16`` or ``torch.bfloat16``.

    Returns:
        65,536 values.

    Example:
        >>> values = all_values(torch.float16)
        >>> int(values.isfinite().sum()), int(values.isnan().sum())
        (63488, 2046)
    """
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


@cache
def strided_values() -> Tensor:
    """Return every 16411th float32 bit pattern (NaNs left out) and 2^16 points over [-20, 20].

    Returns:
        About 326,000 float32 values.
    """
    patterns = np.arange(0, 2**32, STRIDE, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values = [patterns[np.isfinite(patterns)], np.linspace(-20, 20, 2**16, dtype=np.float32)]
    return torch.from_numpy(np.concatenate(values))


def sweep_values(dtype: torch.dtype) -> Tensor:
    """Return the finite values that an activation is swept over.

    Args:
        dtype: float32, float16 or bfloat16.

    Returns:
        All finite ones in 16 bit, a strided selection in float32.
    """
    if dtype == torch.float32:
        return strided_values()
    values = all_values(dtype)
    return values[values.isfinite()]


def special_values(dtype: torch.dtype) -> tuple[list[str], Tensor]:
    """Return the values beside the finite normal ones, and the ends of the range.

    Args:
        dtype: float32, float16 or bfloat16.

    Returns:
        Their names and the values: infinities, NaN, zeros, the largest finite numbers, the smallest normal and
        subnormal ones; in 16 bit every NaN.
    """
    info = torch.finfo(dtype)
    ends = {
        "-max": info.min,
        "max": info.max,
        "-smallest normal": -info.smallest_normal,
        "-subnormal": -info.smallest_normal / 4,
        "smallest subnormal": info.smallest_normal * info.eps,
    }
    names, numbers = [name for name, _ in SPECIAL] + list(ends), [value for _, value in SPECIAL] + list(ends.values())
    values = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    if dtype == torch.float32:
        return names, values
    nans = all_values(dtype)[all_values(dtype).isnan()]
    return [*names, *["nan"] * len(nans)], torch.cat([values, nans])
