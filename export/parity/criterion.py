"""What a file may be off by: the criterion of `lit_gelu.export.check_parity`, as arithmetic on arrays.

For one output on one family of inputs, with ``y64`` the module in float64, the figure is ``max |y - y64| / max |y64|``,
and a file passes if its own is at most ``max(floor(dtype), 2 error(PyTorch in that dtype))``. The floor of 1e-5 in
float32 is 168 unit roundoffs, what a dozen layers of width 1000 lose to another order of additions; in 16 bit it is one
unit roundoff more, which a correctly rounded output costs. The factor 2 is for two implementations that are equally
right and round in another order.

So that no large index hides a small one, each index of each dimension but the first is judged too, on inputs that are
no extremes. With ``s`` its own largest ``|y64|`` and ``e`` PyTorch's own error there, it may be off by

    max(floor(dtype) s, 2 max(e, k rms(e)), 2^-22 min(1, max |y64|))

There are few numbers to an index, so that the largest may be small by luck: k is 4, which one in 16,000 normal errors
exceeds, and 8 in float32, since a plain loop of additions has twice the noise of a blocked one. The last term is four
roundings of float32: the sigmoids of other libraries have such errors where PyTorch's tail goes on.

A fill, such as a mask's -1e9, has no part in these figures. Of whole numbers and truth values the error is the share of
entries that differ, and one position may differ in as many rows as chance explains.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real

import numpy as np
import torch

from lit_gelu.errors import ArgumentError, shown

FLOOR = 1e-5
FACTOR = 2.0
# Half the distance from 1 to the next number: the largest relative error of rounding to nearest.
UNIT_ROUNDOFF: Mapping[torch.dtype, float] = {
    dtype: torch.finfo(dtype).eps / 2 for dtype in (torch.float32, torch.float16, torch.bfloat16)
}
ROOT_MEAN_SQUARES: Mapping[torch.dtype, float] = {torch.float32: 8.0, torch.float16: 4.0, torch.bfloat16: 4.0}
DTYPES: Mapping[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}  # as files name them
# A fill is of another size than what is computed. What saturates, such as softmax, stays below the first number; there
# the rest is judged by the whole.
_FILL, _BEYOND_THE_REST = 1e3, 10.0
_CHANCE = 1e-3  # that some position of an output differs in more rows than it may, if entries differ independently


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def require_tolerance(tolerance: object) -> None:
    """Refuse a tolerance that no error can be compared with."""
    number = float(tolerance) if not isinstance(tolerance, bool) and isinstance(tolerance, Real) else math.nan
    if not 0 <= number < math.inf:
        raise ArgumentError(
            f"tolerance={shown(tolerance)} is not accepted. Give a finite number from 0, such as the default {FLOOR}."
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
    info = torch.finfo(dtype)
    _, exponents = np.frexp(np.clip(np.abs(values), info.tiny, info.max))  # value = m 2^e with 1/2 <= m < 1
    units: np.ndarray = np.ldexp(info.eps, exponents - 1)
    return units


def overflowed(exact: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return exact values in float64 with those that a dtype rounds to infinity made infinite."""
    exact = exact.astype(np.float64)  # a module may end in a cast to 16 bit, which cannot hold the threshold
    largest = np.array(torch.finfo(dtype).max)
    threshold = largest + spacing(largest, dtype) / 2
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


def weights_of_errors(exact: np.ndarray) -> np.ndarray:
    """Return what an error counts at each entry: less where a mask was added that is larger than the rest."""
    # There an output is a constant and values of the size of the rest: their errors are of the constant's rounding, and
    # the constant says nothing of what the rest may be off by.
    sizes, weights = np.abs(exact[np.isfinite(exact)]), np.ones(exact.shape)
    if sizes.max(initial=0.0) < _FILL:  # sorting takes long
        return weights
    sizes.sort()
    gaps = np.flatnonzero((sizes[1:] >= _FILL) & (sizes[1:] >= _BEYOND_THE_REST * sizes[:-1]))
    if gaps.size:
        rest, constant = sizes[gaps[0]], sizes[gaps[0] + 1]
        large = np.isfinite(exact) & (np.abs(exact) >= constant)
        if 0 < np.ptp(exact[large]) <= 4 * rest:
            weights[large] = rest / constant
    return weights


@dataclass(frozen=True)
class WorstIndex:
    """The index whose error is largest in units of its limit, in the words of `ParityRow`."""

    index: str = ""  # such as [:, 2]
    index_error: float = 0.0
    index_limit: float = 0.0
    index_scale: float = 0.0


@dataclass
class Differences:
    """Gathers the differences between one output and its reference, batch by batch."""

    # Equal infinities differ by 0, and so do an infinity and a number too large for the file's dtype. Any other
    # difference that is not finite counts in nonfinite, except where `excused` (what PyTorch gives in that dtype) is
    # not finite either: what the dtype cannot hold is no fault of the file.

    dtype: torch.dtype = torch.float32
    count: int = 0
    max_abs: float = 0.0
    scale: float = 0.0
    nonfinite: int = 0
    compared_rows: int = 0
    changed_rows: int = 0  # of them, those whose largest logit is another one
    share: float | None = None  # of entries that differ, in the batch that has most; None for real numbers
    # For each dimension but the first an array [4, size]: largest error, largest magnitude, sum of squared errors and
    # their count, over all other dimensions. The last dimension holds what is unlike: logits of several classes, fields
    # of a regression. In images that is the second one, and a sequence's positions may differ too.
    along: dict[int, np.ndarray] = field(default_factory=dict)
    # Of whole numbers and truth values: by the shape of a row, in how many rows each position differs, and of how many.
    positions: dict[tuple[int, ...], tuple[np.ndarray, int]] = field(default_factory=dict)

    def add(
        self,
        output: np.ndarray | None,
        reference: np.ndarray,
        excused: np.ndarray | None = None,
        filled: np.ndarray | None = None,
    ) -> None:
        """Add one batch, of which what is ``filled`` is right; one of another shape, or none, is infinitely wrong."""
        self.count += len(reference) if reference.ndim else 1
        is_real = reference.dtype.kind == "f"
        r = overflowed(reference, self.dtype) if is_real else reference.astype(np.float64)
        fits = output is not None and output.shape == reference.shape
        if filled is not None and output is not None and fits:
            r = np.where(filled, output.astype(np.float64), r)
        computed = np.isfinite(r) if filled is None else np.isfinite(r) & ~filled
        weights = weights_of_errors(r) if is_real and excused is None else np.ones(r.shape)
        magnitude = np.where(computed, np.abs(r) * weights, 0.0)
        self.scale = max(self.scale, float(magnitude.max(initial=0.0)))
        if output is None or not fits:
            self.max_abs = math.inf
            return
        y = output.astype(np.float64)
        error = distance(y, r) if filled is None else np.where(filled, 0.0, distance(y, r))
        fault = ~np.isfinite(error)
        self.nonfinite += int(np.count_nonzero(fault if excused is None else fault & np.isfinite(excused)))
        error = np.where(fault, 0.0, error * weights)
        self.max_abs = max(self.max_abs, float(error.max(initial=0.0)))
        if reference.dtype.kind in "iub":
            differs = output != reference
            self.share = max(self.share or 0.0, float(np.mean(differs)) if differs.size else 0.0)
            if differs.ndim > 1:  # numbers and lists of numbers have one position, and the share says all
                before, rows = self.positions.get(differs.shape[1:], (np.zeros(()), 0))
                self.positions[differs.shape[1:]] = before + differs.sum(0, dtype=np.float64), rows + len(differs)
        else:
            for dim, size in list(enumerate(r.shape))[1:]:
                others = tuple(i for i in range(r.ndim) if i != dim)
                figures = [
                    error.max(others, initial=0.0),
                    magnitude.max(others, initial=0.0),
                    np.square(error).sum(others),
                    np.full(size, r.size // max(1, size)),
                ]
                self._join(dim, np.stack(figures))
        if output.ndim == 2 and output.shape[1] >= 2 and np.issubdtype(output.dtype, np.floating):  # as logits are
            rows = np.isfinite(y).all(1) & np.isfinite(r).all(1)
            self.compared_rows += int(np.count_nonzero(rows))
            self.changed_rows += int(np.count_nonzero(y[rows].argmax(1) != r[rows].argmax(1)))

    def _join(self, dim: int, figures: np.ndarray) -> None:
        """Join figures of an index; sizes may be others in another batch."""
        before = self.along.get(dim, np.zeros((4, 0)))
        size = max(before.shape[1], figures.shape[1])
        a, b = (np.pad(part, ((0, 0), (0, size - part.shape[1]))) for part in (before, figures))
        self.along[dim] = np.vstack([np.maximum(a[:2], b[:2]), a[2:] + b[2:]])

    def pool(self, other: "Differences") -> None:
        """Take over what another family of inputs shows of each index."""
        for dim, figures in other.along.items():
            self._join(dim, figures)

    def take_larger(self, other: "Differences") -> None:
        """Take over what is larger of differences on other inputs."""
        self.max_abs = max(self.max_abs, other.max_abs)
        if other.share is not None:
            self.share = max(self.share or 0.0, other.share)
        for shape, (differing, rows) in self.positions.items():
            more, of = other.positions.get(shape, (differing, rows))
            self.positions[shape] = (np.maximum(differing, more * (rows / of)) if of else differing, rows)

    def relative(self, scale: float, ignored: float) -> float:
        """Return the largest difference in units of a scale, 0 up to ``ignored``; of whole numbers the share."""
        if self.share is not None and math.isfinite(self.max_abs):
            return self.share
        if self.max_abs <= ignored:
            return 0.0
        return self.max_abs / scale if scale > 0 else math.inf

    @property
    def top1_agreement(self) -> float | None:
        """Share of rows with the same largest logit; ``None`` if the output is no logits."""
        return 1 - self.changed_rows / self.compared_rows if self.compared_rows else None


def worst_index(
    differences: Differences, usual: Differences, largest: float, dtype: torch.dtype, tolerance: float
) -> WorstIndex | None:
    """Return the index nearest to its limit or beyond it, by PyTorch's usual differences; ``None`` for a vector."""
    candidates = []
    for dim, (errors, *_) in differences.along.items():
        own_errors, scale, squares, count = usual.along[dim]
        limits = limits_of_indices(scale, own_errors, squares / np.maximum(count, 1), largest, dtype, tolerance)
        if errors.size:
            i = int(np.argmax(errors / limits[: len(errors)]))
            candidates.append(WorstIndex(f"[{':, ' * dim}{i}]", float(errors[i]), float(limits[i]), float(scale[i])))
    return max(candidates, key=lambda worst: worst.index_error / worst.index_limit, default=None)


def worst_position(differences: Differences, spread: Differences, share: float) -> WorstIndex | None:
    """Return the position of whole numbers that is nearest to its limit or beyond it; ``None`` if none differs."""
    # One position of a large mask could be wrong in every row below the share's floor. Rounding spreads, a fault stays.
    candidates = []
    for shape, (differing, rows) in differences.positions.items():
        if not differing.any():
            continue
        theirs = spread.positions[shape][0] if shape in spread.positions else np.zeros(shape)
        limits = explained_by_chance(rows, differing.size, share) + FACTOR * theirs
        place = np.unravel_index(int(np.argmax(differing / limits)), shape)
        text = f"[:, {', '.join(map(str, place))}]"
        candidates.append(WorstIndex(text, float(differing[place]), float(limits[place]), rows))
    return max(candidates, key=lambda worst: worst.index_error / worst.index_limit, default=None)
