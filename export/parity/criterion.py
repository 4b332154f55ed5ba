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
PyTorch both hold: from 1e3 and ten times all else on where float64 has them too, rounded to the dtype, or where float64
is beyond the dtype. One that is added to what is computed is no such number.

Of whole numbers and truth values the error is the share of entries that differ. In how many rows one position may
differ follows from that limit: as many as chance explains where entries differ independently, and twice as many as
PyTorch's own (`lit_gelu.export.parity.by_position`).

Where an error is above a limit in float32, PyTorch's own error is measured eight times more, with all weights and
inputs moved by at most a unit in the last place, which is what another order of additions does to each layer; and once
with the terms of linear layers added one by one, because large parts of a sum that cancel cost more than that.
"""

import math
from collections.abc import Mapping
from numbers import Real

import torch

from lit_gelu.errors import shown
from lit_gelu.export.errors import ExportOptionError

FLOOR = 1e-5
FACTOR = 2.0

# Half the distance from 1 to the next number: the largest relative error of rounding to nearest.
UNIT_ROUNDOFF: Mapping[torch.dtype, float] = {
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
ROOT_MEAN_SQUARES: Mapping[torch.dtype, float] = {torch.float32: 8.0, torch.float16: 4.0, torch.bfloat16: 4.0}
_NAMES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "fp16": torch.float16,
    "float16": torch.float16,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype that a file's metadata names; float32 for what has none of its own, such as int8."""
    return _NAMES.get(name.removeprefix("torch."), torch.float32)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def floor(dtype: torch.dtype, tolerance: float = FLOOR) -> float:
    """Return what a file may be off by even where PyTorch is exact: in 16 bit one rounding more than float32."""
    return tolerance if dtype == torch.float32 else tolerance + UNIT_ROUNDOFF[dtype]


def limit(own: float | None, dtype: torch.dtype, tolerance: float = FLOOR) -> float:
    """Return ``max(floor, 2 own)``, in units of the largest output; an own error that is not finite allows nothing."""
    known = own if own is not None and math.isfinite(own) else 0.0
    return max(floor(dtype, tolerance), FACTOR * known)


def in_limits(error: float, limit: float) -> float:
    """Return ``error / limit``; 0 where there is no error, infinite for any error where the limit is 0."""
    return 0.0 if error == 0 else error / limit if limit > 0 else float("inf")


def require_tolerance(tolerance: object) -> None:
    """Refuse a tolerance that no error can be compared with."""
    number = float(tolerance) if not isinstance(tolerance, bool) and isinstance(tolerance, Real) else math.nan
    if not 0 <= number < math.inf:
        raise ExportOptionError(
            f"tolerance={shown(tolerance)} is not accepted. Give a finite number from 0, in units of the largest "
            f"output, such as the default {FLOOR}; at 0 a file may be off by twice PyTorch's own error and no more."
        )


def smallest_error_of_an_index(largest: float, dtype: torch.dtype) -> float:
    """Return an absolute error that any index of an output may have."""
    return max(2.0**-22 * min(1.0, largest), smallest_error(dtype))


def smallest_error(dtype: torch.dtype) -> float:
    """Return an absolute error that is never counted: what flushing one subnormal number to zero costs."""
    # Processors and onnxruntime's kernels may flush subnormal numbers in float32 and bfloat16. Those of float16 begin
    # at 6e-5, where the loss would show, so there it is one step of the subnormal range only.
    return 2.0**-24 if dtype == torch.float16 else 2.0**-126
