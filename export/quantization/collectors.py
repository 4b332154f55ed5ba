"""What onnxruntime's calibration collects of every value, so that no batch decides how finely the others are seen."""

from collections.abc import Mapping, Sequence

import numpy as np
from onnxruntime.quantization.calibrate import CalibrationDataCollector, HistogramCollector

CUT = 100_000
"""Of the numbers of a value, one in so many is cut off by percentiles: 99.999 % are left."""

BINS = 1024
"""Of a histogram for the entropy; onnxruntime's own 128 are as many as int8 has, which leaves nothing to choose."""

_LEVELS = 128  # of int8 on one side of 0, as onnxruntime's search takes them


class ExtremeNumbers(CalibrationDataCollector):  # type: ignore[misc]
    """Keeps the least and the largest numbers of every value: as many as percentiles may cut off, and one more.

    A histogram would not do: its bins are as wide as the largest outlier says. The largest batch is to come first: of
    its size it is learned how many numbers all batches together may cut off.
    """

    def __init__(self, batches: int, *, symmetric: bool) -> None:
        self._batches, self._symmetric = batches, symmetric
        self._side = CUT if symmetric else 2 * CUT
        self._tails: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # least and largest numbers, in any order
        self._sizes: dict[str, tuple[int, int]] = {}  # all numbers, those of the largest batch

    def collect(self, name_to_arr: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Take one batch's numbers."""
        for name, arrays in name_to_arr.items():
            x = np.concatenate([array.ravel() for array in arrays])
            x = np.abs(x[~np.isnan(x)]) if self._symmetric else x[~np.isnan(x)]
            total, largest = self._sizes.get(name, (0, 0))
            self._sizes[name] = total + x.size, max(largest, x.size)
            kept = 1 + self._sizes[name][1] * self._batches // self._side
            low, high = self._tails.get(name, (x[:0], x[:0]))
            self._tails[name] = -_largest(-np.append(low, x), kept), _largest(np.append(high, x), kept)

    def compute_collection_result(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return the range of every value."""
        ranges = {}
        for name, (low, high) in self._tails.items():
            cut = self._sizes[name][0] // self._side
            top = np.sort(high)[-1 - cut] if high.size else np.zeros((), high.dtype)
            bottom = np.sort(low)[cut] if low.size else top
            ranges[name] = (np.asarray(-top if self._symmetric else bottom), np.asarray(top))
        return ranges


def _largest(x: np.ndarray, count: int) -> np.ndarray:
    """Return so many of the largest numbers."""
    return x if x.size <= count else np.partition(x, x.size - count)[x.size - count :].copy()


def fixed_histograms(ranges: Mapping[str, tuple[float, float]], *, symmetric: bool) -> HistogramCollector:
    """Return onnxruntime's histograms for the entropy with bins over ranges that hold every batch."""
    # Of its own it takes the first batch's width for all: after a quiet one there are more bins than memory holds.
    collector = HistogramCollector("entropy", symmetric, BINS, _LEVELS, None, None)
    for name, (low, high) in ranges.items():
        threshold = float(np.float32(max(-float(low), float(high), float(np.finfo(np.float32).tiny))))
        edges = np.histogram_bin_edges([], BINS, (-threshold, threshold)).astype(np.float32)
        least, largest = np.asarray(low, np.float32), np.asarray(high, np.float32)
        collector.histogram_dict[name] = (np.zeros(BINS, np.int64), edges, least, largest, np.float32(threshold))
    return collector
