"""What a file may be off by: the criterion of `lit_gelu.export.check_parity`, derived for each dtype.

For one output tensor and one family of inputs, with ``y64`` the module in float64, the figure is

    error(y) = max |y - y64| / max |y64|

and a file passes if ``error(file) <= max(floor(dtype), 2 error(PyTorch in that dtype))``.

The floor in float32 is 1e-5: 168 unit roundoffs, what a net of a dozen layers of width 1000 loses to another order of
additions. In 16 bit the floor adds one unit roundoff ``u``, 2^-11 for float16 and 2^-8 for bfloat16: a correctly
rounded output differs from ``y64`` by up to ``u |y64|`` however exact the computation before it was. Everything that
16-bit weights and intermediate results cost on top is in PyTorch's own error, which is measured. The factor 2 is for
two implementations that are equally right and round in another order.

One scale for an output would hide an index that is small beside the others. So each index of each dimension but the
first is judged too, on inputs that are no extremes: with ``s`` its own largest ``|y64|`` and ``e`` PyTorch's own error
there, both over all such inputs, its absolute error may be

    max(floor(dtype) s, 2 max(e, k rms(e)), 2^-22 min(1, max |y64|))

The second term is what cancellation costs: logits that nearly cancel are off by the rounding of what cancels in them.
There are few numbers to an index, so that the largest may be small by luck: k is 4, which one in 16,000 normal errors
exceeds, and 8 in float32, since a plain loop of additions has twice the noise of a blocked one; in 16 bit the rounding
of what is stored covers that. The last term is absolute, four roundings of float32 at 1 or at the largest output: the
sigmoids of other libraries have such errors where PyTorch's tail goes on.

A fill, such as a mask's -1e9 or ``torch.finfo(y.dtype).min``, is no ``y64`` of these figures: the numbers that file and
PyTorch both hold, from 1e3 and ten times all else on where float64 has them too, rounded to the dtype, or where float64
is beyond the dtype. One that is added to what is computed is no such number.

Of whole numbers and truth values the error is the share of entries that differ. In how many rows one position may
differ follows from that limit: as many as chance explains where entries differ independently, and twice as many as
PyTorch's own.

Where an error is above a limit in float32, PyTorch's own error is measured eight times more, with all weights and
inputs moved by at most a unit in the last place, which is what another order of additions does to each layer; and once
with the terms of linear layers added one by one, because large parts of a sum that cancel cost more than that.
"""

import math
from collections.abc import Mapping
from numbers import Real

import numpy as np
import torch

from lit_gelu.errors import ArgumentError, shown

FLOOR = 1e-5
FACTOR = 2.0
# Half the distance from 1 to the next number: the largest relative error of rounding to nearest.
UNIT_ROUNDOFF: Mapping[torch.dtype, float] = {
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
ROOT_MEAN_SQUARES: Mapping[torch.dtype, float] = {torch.float32: 8.0, torch.float16: 4.0, torch.bfloat16: 4.0}
_DTYPES = {"fp16": torch.float16, "float16": torch.float16, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16}
# Bits of the significand (the leading one included), exponents of the smallest normal number and of the largest.
_FORMATS: Mapping[torch.dtype, tuple[int, int, int]] = {
    torch.float32: (24, -126, 127),
    torch.float16: (11, -14, 15),
    torch.bfloat16: (8, -126, 127),
}
# A fill is of another size than what is computed. What saturates, such as softmax, stays below the first number; there
# the rest is judged by the whole.
_FILL, _BEYOND_THE_REST = 1e3, 10.0
_CHANCE = 1e-3  # that some position of an output differs in more rows than it may, if entries differ independently


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype that a file's metadata name; float32 for what has none of its own, such as int8."""
    return _DTYPES.get(name.removeprefix("torch."), torch.float32)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def require_tolerance(tolerance: object) -> None:
    """Refuse a tolerance that no error can be compared with."""
    number = float(tolerance) if not isinstance(tolerance, bool) and isinstance(tolerance, Real) else math.nan
    if not 0 <= number < math.inf:
        raise ArgumentError(
            f"tolerance={shown(tolerance)} is not accepted. Give a finite number from 0, in units of the largest "
            f"output, such as the default {FLOOR}; at 0 a file may be off by twice PyTorch's own error and no more."
        )


def floor(dtype: torch.dtype, tolerance: float = FLOOR) -> float:
    """Return what a file may be off by even where PyTorch is exact: in 16 bit one rounding more than float32."""
    return tolerance if dtype == torch.float32 else tolerance + UNIT_ROUNDOFF[dtype]


def limit(own_error: float | None, dtype: torch.dtype, tolerance: float = FLOOR) -> float:
    """Return ``max(floor, 2 own_error)``, in units of the largest output; one that is not finite allows nothing."""
    explained = FACTOR * own_error if own_error is not None and math.isfinite(own_error) else 0.0
    return max(floor(dtype, tolerance), explained)


def smallest_error(dtype: torch.dtype) -> float:
    """Return an absolute error that is never counted: what flushing one subnormal number to zero costs."""
    # Processors and onnxruntime's kernels may flush subnormal numbers in float32 and bfloat16. Those of float16 begin
    # at 6e-5, where the loss would show, so there it is one step of the subnormal range only.
    return 2.0**-24 if dtype == torch.float16 else 2.0**-126


def limits_of_indices(
    scale: np.ndarray, error: np.ndarray, mean_square: np.ndarray, largest: float, dtype: torch.dtype, tolerance: float
) -> np.ndarray:
    """Return what each index may be off by, from its scale and PyTorch's largest and mean square errors there."""
    allowed = FACTOR * np.maximum(error, ROOT_MEAN_SQUARES[dtype] * np.sqrt(mean_square))
    ignored = max(2.0**-22 * min(1.0, largest), smallest_error(dtype))
    limits: np.ndarray = np.maximum(np.maximum(floor(dtype, tolerance) * scale, allowed), ignored)
    return limits


def explained_by_chance(rows: int, positions: int, share: float) -> int:
    """Return in how many rows the worst of some positions may differ, one at least, where a share of entries does."""
    # P(X >= k) <= C(rows, k) share^k for a binomial X, and the sum over all positions bounds that of the worst one.
    if share <= 0:
        return 1
    k = np.arange(1, rows + 1)
    bound = math.log(max(1, positions)) + np.cumsum(np.log((rows - k + 1) / k * share))
    unlikely = np.flatnonzero(bound < math.log(_CHANCE))
    return max(1, int(unlikely[0])) if unlikely.size else max(1, rows)


def distance(y: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return absolute differences in float64: 0 at the same infinity, infinite where one is, NaN at NaN."""
    a, b = y.astype(np.float64), reference.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, np.abs(a - b))


def spacing(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the unit in the last place at each value: ``2^(max(e, e_min) - p + 1)``, ``2^e <= |v| < 2^(e+1)``."""
    bits, smallest, largest = _FORMATS[dtype]
    with np.errstate(divide="ignore"):
        _, exponents = np.frexp(np.abs(values))  # value = m 2^e with 1/2 <= m < 1
    exponents = np.where(values == 0, smallest, np.clip(exponents - 1, smallest, largest))
    units: np.ndarray = np.ldexp(1.0, exponents - (bits - 1))
    return units


def overflowed(exact: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return exact values in float64 with those that a dtype rounds to infinity made infinite."""
    bits, _, largest = _FORMATS[dtype]
    exact = exact.astype(np.float64)  # a module may end in a cast to 16 bit, which cannot hold the threshold
    threshold = (2.0 - 2.0**-bits) * 2.0**largest  # half a step above the largest finite number
    return np.where(np.abs(exact) >= threshold, np.copysign(np.inf, exact), exact)


def fills(output: np.ndarray, baseline: np.ndarray | None, exact: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return where an output, PyTorch in its dtype and float64 hold one fill, such as a mask's -1e9."""
    if exact.dtype.kind != "f" or any(y is not None and y.shape != exact.shape for y in (output, baseline)):
        return np.zeros(exact.shape, dtype=bool)
    y, r = output.astype(np.float64), overflowed(exact, dtype)
    agreed = np.isfinite(y) if baseline is None else np.isfinite(y) & (y == baseline.astype(np.float64))
    same = agreed & (y == torch.from_numpy(r).to(dtype).double().numpy())  # the dtype may not hold what float64 does
    rest = float(np.abs(r[np.isfinite(r) & ~same]).max(initial=0.0))
    large: np.ndarray = same & (np.abs(y) >= max(_FILL, _BEYOND_THE_REST * rest))
    # A fill of the dtype's own, as torch.finfo(y.dtype).min is, is another one in float64, beyond the dtype.
    return large if baseline is None else large | (agreed & np.isinf(r))
