"""How well a function of one variable is computed: errors against float64, in units of the last place, in the tails."""

from dataclasses import dataclass

import numpy as np
import torch

from lit_gelu.export.parity.ulp import UlpHistogram, histogram, ulp_errors

TAIL_ERROR = 1e-3  # the relative error by whose onset tails are compared
EDGES = np.linspace(-12.0, 12.0, 97)  # of the profile's bins


@dataclass(frozen=True)
class Tail:
    """Where a computed function leaves its definition, going out from zero."""

    # The first distance from zero beyond 1 where the output is exactly 0 and the definition's is a normal number;
    # None if that does not happen.
    flush: float | None
    inaccurate: float | None  # the first distance beyond 1/8 where the relative error exceeds `TAIL_ERROR`


@dataclass(frozen=True)
class ComputedFunction:
    """How well a function is computed."""

    error: float  # the largest |y - y64| / max(1, |y64|)
    at: float  # the input where that is
    mean_error: float  # the mean of the same over the inputs
    max_abs_near: float  # the largest absolute error for |x| <= 6
    ulp_near_one: float  # the largest error in units of the last place for |x| <= 1
    ulp: UlpHistogram  # all errors in units of the last place
    negative: Tail  # towards minus infinity
    positive: Tail  # towards infinity
    # The largest absolute error in each of the bins between `EDGES`; NaN in a bin that no input falls into.
    profile: tuple[float, ...]


def computed_function(x: np.ndarray, y: np.ndarray, exact: np.ndarray, dtype: torch.dtype) -> ComputedFunction:
    """Say how well a function is computed at finite float64 inputs; errors that are not finite are left out."""
    scaled = scaled_errors(y, exact)
    finite = np.where(np.isfinite(scaled), scaled, -1.0)
    ulps = ulp_errors(y, exact, dtype)
    with np.errstate(invalid="ignore"):
        absolute = np.where(np.isfinite(scaled) & (y != exact), np.abs(y - exact), 0.0)
    near = np.abs(x) <= 1
    worst = int(finite.argmax())
    return ComputedFunction(
        error=float(max(finite[worst], 0.0)),
        at=float(x[worst]),
        mean_error=float(scaled[np.isfinite(scaled)].mean()),
        max_abs_near=float(absolute[np.abs(x) <= 6].max(initial=0.0)),
        ulp_near_one=histogram(ulps[near]).largest,
        ulp=histogram(ulps),
        negative=_tail(-x, y, exact, dtype),
        positive=_tail(x, y, exact, dtype),
        profile=_profile(x, absolute),
    )


def scaled_errors(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return errors in units of ``max(1, |exact|)``: 0 at the same infinity, infinite where one only is finite."""
    with np.errstate(invalid="ignore"):
        error = np.abs(y - exact) / np.maximum(1.0, np.abs(exact))
    return np.where(y == exact, 0.0, np.where(np.isnan(error), np.inf, error))


def _tail(outwards: np.ndarray, y: np.ndarray, exact: np.ndarray, dtype: torch.dtype) -> Tail:
    """Return where the function leaves its definition on the side on which ``outwards`` is positive."""
    normal = np.isfinite(exact) & (np.abs(exact) >= torch.finfo(dtype).smallest_normal)
    flushed = outwards[(outwards >= 1) & normal & (y == 0)]
    with np.errstate(invalid="ignore"):
        wrong = np.abs(y - exact) > TAIL_ERROR * np.abs(exact)
    inaccurate = outwards[(outwards >= 0.125) & normal & wrong]
    return Tail(*(float(found.min()) if found.size else None for found in (flushed, inaccurate)))


def _profile(x: np.ndarray, absolute: np.ndarray) -> tuple[float, ...]:
    """Return the largest error in each bin."""
    bins = np.digitize(x, EDGES)
    inside = (bins > 0) & (bins < len(EDGES))
    largest = np.full(len(EDGES) - 1, -1.0)
    np.maximum.at(largest, bins[inside] - 1, absolute[inside])
    return tuple(float(v) if v >= 0 else float("nan") for v in largest)
