"""Medians and spread over seeds: of numbers, of curves, and of the test set under noise.

A run that diverged is worse than any other: its values are infinite here, in medians too, and never left out. The
median of an even number of runs is the mean of the two in the middle.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gelu_paper.errors import PaperArgumentError, RecordsError
from gelu_paper.records.run_record import Curve, RunRecord


@dataclass(frozen=True)
class Summary:
    """Values of some runs, infinite for those that diverged: median and spread."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse an empty summary, and let no NaN take part in a comparison."""
        if not self.values:
            raise PaperArgumentError("The values of no run given; a median needs at least one.")
        object.__setattr__(self, "values", tuple(infinite_if_not_finite(value) for value in self.values))

    @property
    def median(self) -> float:
        """The median; infinite if half of the runs or more diverged."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest value."""
        return max(self.values)

    @property
    def standard_deviation(self) -> float | None:
        """The sample standard deviation (n - 1 in the denominator); ``None`` of one run, or if any diverged."""
        if len(self.values) < 2 or math.isinf(self.high):
            return None
        return statistics.stdev(self.values)

    @property
    def diverged(self) -> int:
        """How many of the values are infinite."""
        return sum(map(math.isinf, self.values))


@dataclass(frozen=True)
class MedianCurve:
    """The median of some runs' curves, epoch by epoch; runs that had diverged count as infinite."""

    epoch: tuple[float, ...]
    summaries: tuple[Summary, ...]

    @property
    def median(self) -> tuple[float, ...]:
        """The medians."""
        return tuple(summary.median for summary in self.summaries)

    @property
    def low(self) -> tuple[float, ...]:
        """The lowest values."""
        return tuple(summary.low for summary in self.summaries)

    @property
    def high(self) -> tuple[float, ...]:
        """The highest values."""
        return tuple(summary.high for summary in self.summaries)


def median_curve(records: Sequence[RunRecord], name: str) -> MedianCurve | None:
    """Return the median of a curve over runs that differ in nothing but their seeds; ``None`` if no run has it."""
    curves = [record.curves.get(name, Curve((), ())) for record in records]
    longest: tuple[float, ...] = max((curve.epoch for curve in curves), key=len, default=())
    if not longest:
        return None
    rows = []
    for record, curve in zip(records, curves, strict=True):
        expected = longest[: len(curve.epoch)] if record.status == "diverged" else longest
        if len(curve.epoch) != len(expected) or not all(map(math.isclose, curve.epoch, expected)):
            raise RecordsError(
                f"{record.key!r} measured {name} at other epochs than the runs with other seeds ({len(curve.epoch)} "
                f"measurements, not {len(longest)}). Runs of different configurations have no median; repeat the runs "
                "in another folder."
            )
        rows.append([*curve.value, *[math.inf] * (len(longest) - len(curve.value))])
    return MedianCurve(longest, tuple(Summary(values) for values in zip(*rows, strict=True)))


def median_robustness(records: Sequence[RunRecord], name: str) -> MedianCurve | None:
    """Return the median over runs of ``"error"`` or ``"loss"`` under noise, with its levels in the place of epochs."""
    measured = {record.key: record.robustness for record in records if record.robustness is not None}
    if not measured:
        return None
    levels = next(iter(measured.values())).levels
    rows: list[Sequence[float]] = []
    for record in records:
        robustness = measured.get(record.key)
        if record.status == "diverged":
            rows.append([math.inf] * len(levels))
        elif robustness is not None and robustness.levels == levels:
            rows.append(getattr(robustness, name))
        else:
            raise RecordsError(f"{record.key!r} was not measured at the levels of noise {levels} of the other seeds.")
    return MedianCurve(levels, tuple(Summary(values) for values in zip(*rows, strict=True)))


def infinite_if_not_finite(value: float) -> float:
    """Return a value, or infinity in the place of NaN: what is no number is worse than any."""
    return value if math.isfinite(value) else math.inf
