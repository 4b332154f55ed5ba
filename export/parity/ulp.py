"""Errors in units of the last place, counted against float64."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

# Bits of the significand (the leading one included), exponent of the smallest normal number, of the largest.
_FORMATS: Mapping[torch.dtype, tuple[int, int, int]] = {
    torch.float32: (24, -126, 127),
    torch.float16: (11, -14, 15),
    torch.bfloat16: (8, -126, 127),
}

# Upper ends of the histogram's bins; 0.5 is correct rounding. The last bin holds everything above.
EDGES: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 16.0, 256.0, 65536.0)


@dataclass(frozen=True)
class UlpHistogram:
    """How many values are off by how much."""

    # One for each of `EDGES` (error <= edge, and above the edge before), and one for errors above the last. Infinite
    # and NaN errors are in nonfinite.
    counts: tuple[int, ...]
    nonfinite: int  # errors that are no number
    largest: float  # the largest finite error, in units of the last place


def spacing(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the unit in the last place at each value: ``2^(max(e, e_min) - p + 1)``, ``2^e <= |v| < 2^(e+1)``."""
    bits, smallest, largest = _FORMATS[dtype]
    with np.errstate(divide="ignore"):
        _, exponents = np.frexp(np.abs(values))  # value = m 2^e with 1/2 <= m < 1
    exponents = np.where(values == 0, smallest, np.clip(exponents - 1, smallest, largest))
    units: np.ndarray = np.ldexp(1.0, exponents - (bits - 1))
    return units


def overflowed(exact: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return exact values with those that a dtype rounds to infinity made infinite."""
    bits, _, largest = _FORMATS[dtype]
    exact = exact.astype(np.float64)  # a module may end in a cast to 16 bit, which cannot hold the threshold
    threshold = (2.0 - 2.0**-bits) * 2.0**largest  # half a step above the largest finite number
    return np.where(np.abs(exact) >= threshold, np.copysign(np.inf, exact), exact)


def ulp_errors(values: np.ndarray, exact: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return ``|value - exact| / spacing(exact)``: 0 at the same infinity, infinite where one is, NaN at NaN."""
    y, reference = values.astype(np.float64), overflowed(exact.astype(np.float64), dtype)
    finite = np.isfinite(y) & np.isfinite(reference)
    with np.errstate(invalid="ignore"):
        error = np.where(y == reference, 0.0, np.abs(y - reference))
    error[finite] /= spacing(reference[finite], dtype)
    return error


def histogram(errors: np.ndarray) -> UlpHistogram:
    """Count errors by size."""
    finite = errors[np.isfinite(errors)]
    places = np.searchsorted(np.array(EDGES), finite, side="left")
    counts = np.bincount(places, minlength=len(EDGES) + 1)
    return UlpHistogram(tuple(int(n) for n in counts), int(errors.size - finite.size), float(finite.max(initial=0.0)))
