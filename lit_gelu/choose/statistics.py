"""Differences between candidates that were trained with the same seeds, and what they decide.

Runs are paired by seed: the differences at equal seeds are one sample, whose mean has Student's 95 % interval and
Student's two-sided test against 0. The tests of all pairs are corrected by Holm's method (Holm 1979, A simple
sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6).
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lit_gelu.display import Displayed

CONFIDENCE = 0.95
FEWEST_SEEDS = 5  # four differences of one sign come by chance in one of eight cases, however small they are
_ROUNDING = 1e-6  # of the largest value: what is logged is float32, and a mean over batches rounds some times more
_SMALLEST = 0.0001  # how much smaller p is says nothing more


@dataclass(frozen=True)
class Metric:
    """The figure that decides."""

    name: str  # as the module logs it
    stage: Literal["val", "test"]  # in validation, at the end of every epoch, or in a test behind the last one
    mode: Literal["min", "max"]  # "min" if less is better

    def badness(self, value: float) -> float:
        """Return a value of which less is better."""
        return -value if self.mode == "max" else value


@dataclass(frozen=True, repr=False)
class PairedDifference(Displayed):
    """How much a candidate's metric is above another's, over the seeds of both."""

    of: str  # the label of the one
    to: str  # the label of the other
    seeds: int  # how many
    mean: float  # of the differences at equal seeds; above 0 if the first has more
    low: float | None  # the lower end of the 95 % interval; None with less than five seeds
    high: float | None  # its upper end
    p: float  # how often chance alone makes a mean as far from 0, corrected for all pairs
    equal: bool  # whether both gave the same number with every seed

    @property
    def is_decided(self) -> bool:
        """Whether both say that it is not 0: the interval, and the test with its correction for all pairs."""
        excludes_zero = self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)
        return not self.equal and excludes_zero and self.p < 1 - CONFIDENCE

    def reversed(self) -> "PairedDifference":
        """Return the same with its sign turned."""
        low, high = None if self.high is None else -self.high, None if self.low is None else -self.low
        return replace(self, of=self.to, to=self.of, mean=-self.mean, low=low, high=high)


def all_differences(values: Mapping[str, Sequence[float]]) -> list[PairedDifference]:
    """Return the differences of all pairs; values are finite, by label, in the order of the seeds."""
    pairs = list(itertools.combinations(values, 2))
    samples = [np.subtract(values[of], values[to]) for of, to in pairs]
    largest = [float(np.abs([values[of], values[to]]).max(initial=0)) for of, to in pairs]
    tests = [paired_test(sample, _ROUNDING * most) for sample, most in zip(samples, largest, strict=True)]
    rows = []
    for (of, to), sample, (_, low, high), p in zip(pairs, samples, tests, holm([p for p, *_ in tests]), strict=True):
        seeds, mean, equal = len(sample), float(sample.mean()), not np.any(sample)
        has_interval = seeds >= FEWEST_SEEDS
        ends = (low if has_interval else None, high if has_interval else None)
        rows.append(PairedDifference(of, to, seeds, mean, ends[0], ends[1], p, equal))
    return rows


def paired_test(differences: np.ndarray, rounding: float = 0.0) -> tuple[float, float, float]:
    """Return ``p`` of Student's test that the mean is 0, two-sided, and the ends of its 95 % interval."""
    # ``p`` is 1 if all differences are as small as rounding. Where all are one number but for rounding, as errors on a
    # hundred samples may be, they have no spread to be tested by: then by their signs, ``p = 2 / 2^n``.
    from scipy import stats  # half a second

    mean = float(differences.mean())
    if float(np.abs(differences).max()) <= rounding:
        return 1.0, mean, mean
    if float(np.ptp(differences)) <= rounding:
        return 2.0 ** (1 - len(differences)), mean, mean
    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(CONFIDENCE)
    return float(test.pvalue), float(interval.low), float(interval.high)


def holm(chances: Sequence[float]) -> list[float]:
    """Return ``p`` of several tests, corrected so that one in twenty sets of them has a false alarm at 5 %."""
    order = np.argsort(chances)
    stepped = np.asarray(chances)[order] * np.arange(len(chances), 0, -1)
    corrected = np.empty(len(chances))
    corrected[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return [float(p) for p in corrected]


def verdict(
    metric: Metric, labels: Sequence[str], differences: Sequence[PairedDifference], seeds: int, baseline: str | None
) -> list[str]:
    """Return what is decided, in sentences; labels come in the order of their medians, the best first."""
    between = {(d.of, d.to): d for one in differences for d in (one, one.reversed())}
    lines = []
    for label in labels:
        same = [other for other in labels if other == label or between[label, other].equal]
        if len(same) > 1 and same[0] == label:
            lines.append(f"{listed(same)} gave the same numbers with every seed: there is no difference between them.")
    if seeds < FEWEST_SEEDS or len(labels) < 2:
        few = f"{seeds} seeds are too few for an interval. Train at least {FEWEST_SEEDS}."
        why = few if seeds < FEWEST_SEEDS else "there are no two candidates to compare."
        return [*lines, f"Nothing is decided: {why}"]
    for reference in dict.fromkeys([labels[0], baseline or labels[0]]):
        kinds: dict[str, list[PairedDifference]] = {"better than": [], "worse than": [], "not told apart from": []}
        for other in labels:
            difference = between.get((reference, other))
            if difference is not None and not difference.equal:
                is_better = metric.badness(difference.mean) < 0
                kind = "better than" if is_better else "worse than"
                kinds[kind if difference.is_decided else "not told apart from"].append(difference)
        parts = []
        for kind, members in kinds.items():
            chances = [f"p < {_SMALLEST}" if d.p < _SMALLEST else f"p = {d.p:.3g}" for d in members]
            chances = chances[:1] if len(set(chances)) == 1 else chances
            parts += [f"{kind} {listed(d.to for d in members)} ({listed(chances)})"] if members else []
        if parts:
            lines.append(f"{reference} is {'; '.join(parts)}.")
    if any(not difference.equal for difference in differences):
        pairs = f", corrected for {len(differences)} pairs" if len(differences) > 1 else ""
        lines.append(f"p is that of Student's test of {metric.name} over {seeds} seeds{pairs}.")
    return lines


def listed(words: Iterable[str]) -> str:
    """Return words as a list in a sentence: ``gelu, silu and relu``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
