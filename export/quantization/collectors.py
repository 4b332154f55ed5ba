"""What onnxruntime's calibration collects of every value, so that no batch decides how finely the others are seen."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from onnxruntime.quantization.calibrate import CalibrationDataCollector, HistogramCollector

CUT = 100_000
"""Of the numbers of a value, one in so many is cut off by percentiles: 99.999 % are left."""

BINS = 1024
"""Of a histogram for the entropy; onnxruntime's own 128 are as many as int8 has, which leaves nothing to choose."""

_LEVELS = 128  # of int8 on one side of 0, as onnxruntime's search takes them


class NumberCounts(CalibrationDataCollector):  # type: ignore[misc]
    """Counts the numbers of every value."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def collect(self, name_to_arr: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Count one batch's numbers."""
        for name, arrays in name_to_arr.items():
            self._counts[name] += sum(int(np.count_nonzero(~np.isnan(array))) for array in arrays)

    def compute_collection_result(self) -> Mapping[str, int]:
        """Return how many numbers every value has."""
        return self._counts


class ExtremeNumbers(CalibrationDataCollector):  # type: ignore[misc]
    """Keeps the least and the largest numbers of every value: as many as percentiles cut off, and one more.

    A histogram would not do: its bins are as wide as the largest outlier says. How many are cut off follows from the
    count of all numbers, which has to be known beforehand: no batch's size tells the sizes of those that follow.
    """

    def __init__(self, counts: Mapping[str, int], *, symmetric: bool) -> None:
        self._symmetric = symmetric
        self._cut = {name: count // (CUT if symmetric else 2 * CUT) for name, count in counts.items()}
        self._tails: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # least and largest numbers, in any order

    def collect(self, name_to_arr: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Take one batch's numbers."""
        for name, arrays in name_to_arr.items():
            x = np.concatenate([array.ravel() for array in arrays])
            x = np.abs(x[~np.isnan(x)]) if self._symmetric else x[~np.isnan(x)]
            kept = 1 + self._cut[name]
            low, high = self._tails.get(name, (x[:0], x[:0]))
            self._tails[name] = -_largest(-np.append(low, x), kept), _largest(np.append(high, x), kept)

    def compute_collection_result(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return the range of every value."""
        ranges = {}
        for name, (low, high) in self._tails.items():
            cut = self._cut[name]
            top = np.sort(high)[-1 - cut] if high.size else np.zeros((), high.dtype)
            bottom = np.sort(low)[cut] if low.size else top
            ranges[name] = (np.asarray(-top if self._symmetric else bottom), np.asarray(top))
        return ranges


def _largest(x: np.ndarray, count: int) -> np.ndarray:
    """Return so many of the largest numbers."""
    return x if x.size <= count else np.partition(x, x.size - count)[x.size - count :].copy()


class GuardedHistograms(HistogramCollector):  # type: ignore[misc]
    """onnxruntime's search for the entropy, whose range is taken only if its squared error is not the larger one.

    The search spreads each of its 128 groups of bins over the empty bins in it, too. So numbers that are few different
    ones, such as 0 and 1 or the zeros of a Relu, seem to lose most with the whole range, and it cuts the signal away.
    Leaving the empty bins out is not enough: the information lost does not say how far off a clipped number is.
    """

    def get_entropy_threshold(
        self, histogram: tuple[np.ndarray, ...], num_quantized_bins: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the range that the search finds, or the whole one."""
        found = super().get_entropy_threshold(histogram, num_quantized_bins)
        whole = histogram[2], histogram[3]
        narrow = self._squared_error(histogram, *found) <= self._squared_error(histogram, *whole)
        return found if narrow else whole

    def _squared_error(self, histogram: tuple[np.ndarray, ...], low: np.ndarray, high: np.ndarray) -> float:
        """Return the squared error of a range in 8 bits: what is clipped, and what rounding to its steps costs."""
        counts, edges = histogram[0], histogram[1].astype(np.float64)
        centres = (edges[:-1] + edges[1:]) / 2
        least, largest = min(float(low), 0.0), max(float(high), 0.0)
        if self.symmetric:
            least, largest = min(least, -largest), max(largest, -least)
        step = (largest - least) / (254 if self.symmetric else 255)
        clipped = centres - np.clip(centres, least, largest)
        return float(np.sum(counts * (clipped**2 + step**2 / 12)))


def fixed_histograms(ranges: Mapping[str, tuple[float, float]], *, symmetric: bool) -> GuardedHistograms:
    """Return onnxruntime's histograms for the entropy with bins over ranges that hold every batch."""
    # Of its own it takes the first batch's width for all: after a quiet one there are more bins than memory holds.
    collector = GuardedHistograms("entropy", symmetric, BINS, _LEVELS, None, None)
    for name, (low, high) in ranges.items():
        threshold = float(np.float32(max(-float(low), float(high), float(np.finfo(np.float32).tiny))))
        edges = np.histogram_bin_edges([], BINS, (-threshold, threshold)).astype(np.float32)
        least, largest = np.asarray(low, np.float32), np.asarray(high, np.float32)
        collector.histogram_dict[name] = (np.zeros(BINS, np.int64), edges, least, largest, np.float32(threshold))
    return collector
