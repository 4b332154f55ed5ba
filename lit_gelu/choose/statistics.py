"""Differences between candidates over seeds, and what they decide.

Runs are paired by seed: the differences at equal seeds are one sample, whose mean has Student's 95 % interval and
Student's two-sided test against 0, or the test of `lit_gelu.choose.sequential` if the number of seeds follows from the
results. Runs that are not paired have Welch's test. The tests of all pairs are corrected by Holm's method (Holm 1979, A
simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6).
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, shown

CONFIDENCE = 0.95
ALPHA = 0.05
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
class MetricDifference(Displayed):
    """How much a candidate's metric is above another's."""

    of: str  # the label of the one
    to: str  # the label of the other
    seeds: int  # how many; of runs that are not paired, how many runs each has at least
    mean: float  # of the differences at equal seeds; above 0 if the first has more
    low: float | None  # the lower end of the 95 % interval; None with too few seeds
    high: float | None  # its upper end
    p: float  # how often chance alone makes a mean as far from 0, corrected for all pairs
    equal: bool  # whether both gave the same number with every seed

    @property
    def is_decided(self) -> bool:
        """Whether both say that it is not 0: the interval, and the test with its correction for all pairs."""
        excludes_zero = self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)
        return not self.equal and excludes_zero and self.p < 1 - CONFIDENCE

    def reversed(self) -> "MetricDifference":
        """Return the same with its sign turned."""
        low, high = None if self.high is None else -self.high, None if self.low is None else -self.low
        return replace(self, of=self.to, to=self.of, mean=-self.mean, low=low, high=high)


Test = Callable[[np.ndarray, np.ndarray, float], tuple[float, float, float]]  # p, and the ends of the interval


def all_differences(values: Mapping[str, Sequence[float]], test: Test | None = None) -> list[MetricDifference]:
    """Return the differences of all pairs; values are finite, by label, in the order of the seeds.

    ``test`` takes the values of two candidates, and how far rounding puts two equal ones apart.
    """
    test = test or (lambda of, to, rounding: paired_test(of - to, rounding))
    pairs = [(of, to, np.asarray(values[of]), np.asarray(values[to])) for of, to in itertools.combinations(values, 2)]
    results = [test(x, y, _ROUNDING * float(np.abs([*x, *y]).max(initial=0))) for _, _, x, y in pairs]
    rows = []
    for (of, to, x, y), (_, low, high), p in zip(pairs, results, holm([p for p, *_ in results]), strict=True):
        seeds, has_interval = min(len(x), len(y)), min(len(x), len(y)) >= FEWEST_SEEDS and math.isfinite(high - low)
        ends = (low if has_interval else None, high if has_interval else None)
        rows.append(MetricDifference(of, to, seeds, float(x.mean() - y.mean()), *ends, p, np.array_equal(x, y)))
    return rows


def is_constant(differences: np.ndarray, rounding: float) -> tuple[float, float, float] | None:
    """Return the result of a test of differences that have no spread; ``None`` if they have one."""
    # ``p`` is 1 if all differences are as small as rounding. Where all are one number but for rounding, as errors on a
    # hundred samples may be, they have no spread to be tested by: then by their signs, ``p = 2 / 2^n``.
    mean = float(differences.mean())
    if float(np.abs(differences).max()) <= rounding:
        return 1.0, mean, mean
    return (2.0 ** (1 - len(differences)), mean, mean) if float(np.ptp(differences)) <= rounding else None


def paired_test(differences: np.ndarray, rounding: float = 0.0) -> tuple[float, float, float]:
    """Return ``p`` of Student's test that the mean is 0, two-sided, and the ends of its 95 % interval."""
    if (constant := is_constant(differences, rounding)) is not None:
        return constant
    from scipy import stats  # half a second

    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(CONFIDENCE)
    return float(test.pvalue), float(interval.low), float(interval.high)


def unpaired_test(x: np.ndarray, y: np.ndarray, rounding: float = 0.0) -> tuple[float, float, float]:
    """Return ``p`` of Welch's test that two means are equal, two-sided, and the 95 % interval of their difference."""
    if float(np.ptp(x)) <= rounding and float(np.ptp(y)) <= rounding:  # no spread: nothing tells it from chance
        return 1.0, -math.inf, math.inf
    from scipy import stats  # half a second

    test = stats.ttest_ind(x, y, equal_var=False)
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
    metric: Metric,
    labels: Sequence[str],
    differences: Sequence[MetricDifference],
    seeds: int,
    baseline: str | None,
    test: str = "Student's test of {} over {} seeds",
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
        kinds: dict[str, list[MetricDifference]] = {"better than": [], "worse than": [], "not told apart from": []}
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
        lines.append(f"p is that of {test.format(metric.name, seeds)}{pairs}.")
    return lines


# What names of metrics say: whether less is better, and whether it may be per cent.
_LOW = {"loss", "error", "err", "mse", "mae", "rmse", "nll", "perplexity", "ppl", "bpb", "wer", "cer"}
_HIGH = {"acc", "accuracy", "auc", "auroc", "f1", "precision", "recall", "iou", "dice", "r2", "psnr", "ssim", "bleu"}
_SHARES = {"error", "err", "wer", "cer", "acc", "accuracy", "auc", "auroc", "f1", "precision", "recall", "iou", "dice"}


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def direction_of(name: str, mode: str | None) -> Literal["min", "max"]:
    """Return whether less or more of a metric is better.

    Raises:
        ArgumentError: If ``mode`` is no mode, or ``None`` where the name does not say it.
    """
    words = _words(name)
    if mode is None and bool(words & _LOW) != bool(words & _HIGH):
        mode = "min" if words & _LOW else "max"
    if mode not in {"min", "max"}:
        raise ArgumentError(
            f'mode={shown(mode)}: give mode="min" if less of {name} is better, mode="max" if more is; its name '
            "does not say it."
        )
    return "min" if mode == "min" else "max"


def is_share(name: str) -> bool:
    """Return whether a metric is a share of something, by its name, which may be written in per cent."""
    return bool(_words(name) & _SHARES)


def listed(words: Iterable[str]) -> str:
    """Return words as a list in a sentence: ``gelu, silu and relu``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
