"""Differences between candidates that were trained with the same seeds: intervals, and which are decided.

The interval is that of a paired bootstrap over the seeds, widened for small numbers: as it stands, an interval of
percentiles that should hold in 95 of 100 cases holds in 84 with five seeds. Whether a difference is decided is told by
Student's test of the paired differences too, with Holm's correction for all pairs that are compared.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from lit_gelu.display import Displayed

CONFIDENCE = 0.95
FEWEST_SEEDS = 5  # four differences of one sign come by chance in one of eight cases, however small they are
_ALL_RESAMPLES = 8  # seeds up to which they are all counted: 6,435
_DRAWN = 20_000  # resamples where there are more seeds
_ROUNDING = 1e-6  # of the largest value: what is logged is float32, and a mean over batches rounds some times more


@dataclass(frozen=True, repr=False)
class PairedDifference(Displayed):
    """How much a candidate's metric is above another's, over the seeds of both.

    Args:
        of: The label of the one.
        to: The label of the other.
        seeds: How many.
        mean: Of the differences at equal seeds; above 0 if the first has more.
        low: The lower end of the 95 % interval; ``None`` if there are too few seeds for one.
        high: Its upper end.
        p: How often chance alone makes a mean as far from 0, by Student's test; corrected for all pairs by Holm.
        equal: Whether both gave the same number with every seed.
    """

    of: str
    to: str
    seeds: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    equal: bool

    @property
    def is_decided(self) -> bool:
        """Whether both say that it is not 0: the interval is on one side of 0, and ``p`` is below 5 %."""
        if self.equal or self.p is None or self.low is None or self.high is None:
            return False
        return self.p < 1 - CONFIDENCE and (self.low > 0 or self.high < 0)

    def reversed(self) -> "PairedDifference":
        """Return the same with its sign turned."""
        low, high = None if self.high is None else -self.high, None if self.low is None else -self.low
        return PairedDifference(self.to, self.of, self.seeds, -self.mean, low, high, self.p, self.equal)


def all_differences(values: Mapping[str, Sequence[float]]) -> list[PairedDifference]:
    """Return the differences of all pairs; ``values`` has finite numbers, by label, in the order of the seeds."""
    pairs = list(itertools.combinations(values, 2))
    apart = [[a - b for a, b in zip(values[one], values[other], strict=True)] for one, other in pairs]
    rounding = [_ROUNDING * max(map(abs, [*values[one], *values[other]]), default=0.0) for one, other in pairs]
    chances = holm(list(map(student_chance, apart, rounding)))
    return [_difference(one, other, each, p) for (one, other), each, p in zip(pairs, apart, chances, strict=True)]


def _difference(one: str, other: str, apart: Sequence[float], chance: float) -> PairedDifference:
    ends = bootstrap_interval(apart)
    low, high = (None, None) if ends is None else ends
    p = chance if len(apart) > 1 else None
    return PairedDifference(one, other, len(apart), math.fsum(apart) / len(apart), low, high, p, not any(apart))


def bootstrap_interval(apart: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval of a mean by the expanded percentile bootstrap.

    The ends are the percentiles ``a`` and ``1 - a`` of the means of resamples, with ``a = Phi(-sqrt(n / (n - 1)) t)``
    and ``t`` the quantile of Student's distribution with ``n - 1`` degrees of freedom, so that its length is that of
    Student's interval where the differences are normal; Hesterberg 2015, What teachers should know about the bootstrap,
    The American Statistician 69, section 4.3. Up to eight numbers, all resamples are counted; of more, 20,000 are
    drawn, always the same.

    Args:
        apart: Differences, one a seed.
        confidence: In how many cases it should hold.

    Returns:
        Its ends; ``None`` if there are too few numbers.
    """
    count = len(apart)
    if count < FEWEST_SEEDS:
        return None
    shares, chances = resamples(count)
    means = shares @ np.asarray(apart, dtype=np.float64)
    order = np.argsort(means, kind="stable")
    reached = np.cumsum(chances[order])
    tail = tail_of_percentiles(count, confidence)
    low, high = (int(np.searchsorted(reached, share)) for share in (tail, 1 - tail))
    return float(means[order][low]), float(means[order][min(high, len(order) - 1)])


@cache
def tail_of_percentiles(count: int, confidence: float) -> float:
    """Return the share of resamples that is left out at each end."""
    t, step = 0.0, 64.0
    while step > 1e-12:  # the quantile, by bisection
        t += step if student_tail(t + step, count - 1) > 1 - confidence else 0.0
        step /= 2
    return 0.5 * math.erfc(math.sqrt(count / (count - 1) / 2) * t)


@cache
def resamples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which shares of ``count`` numbers the resamples have, ``[resamples, count]``, and how likely each is."""
    if count > _ALL_RESAMPLES:
        drawn = np.random.default_rng(0).multinomial(count, [1 / count] * count, size=_DRAWN)
        return drawn / count, np.full(_DRAWN, 1 / _DRAWN)
    counts = np.array([
        np.diff([-1, *bars, 2 * count - 1]) - 1 for bars in itertools.combinations(range(2 * count - 1), count - 1)
    ])
    ways = [math.factorial(count) / math.prod(math.factorial(int(k)) for k in row) for row in counts]
    return counts / count, np.array(ways) / count**count


def student_chance(apart: Sequence[float], rounding: float = 0.0) -> float:
    """Return how often chance alone makes a mean as far from 0, by Student's test of one sample, two-sided.

    Where all numbers are one but for rounding, as errors on a hundred samples may be, they have no spread to be tested
    by: then by their signs, ``2 / 2^n``.

    Args:
        apart: Differences, one a seed.
        rounding: How far from each other rounding alone may bring them.

    Returns:
        A number between 0 and 1; 1 if all differences are 0 or as small as rounding, or there are less than two.
    """
    numbers = np.asarray(apart, dtype=np.float64)
    if len(numbers) < 2 or float(np.abs(numbers).max()) <= rounding:
        return 1.0
    if float(np.ptp(numbers)) <= rounding:  # and all have one sign: one of them is farther from 0 than from any other
        return float(2.0 ** (1 - len(numbers)))
    t = abs(float(numbers.mean())) / (float(numbers.std(ddof=1)) / math.sqrt(len(numbers)))
    return student_tail(t, len(numbers) - 1)


def student_tail(t: float, freedom: int) -> float:
    """Return ``P(|T| >= t)`` for Student's distribution: the finite series of Abramowitz and Stegun 26.7.3 and 4."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    term, total = (math.cos(angle), 0.0) if freedom % 2 else (1.0, 0.0)
    for k in range(1 + freedom % 2, freedom, 2):
        total += term
        term *= square * k / (k + 1)
    inside = 2 / math.pi * (angle + sine * total) if freedom % 2 else sine * total
    return min(1.0, max(0.0, 1.0 - inside))


def holm(chances: Sequence[float]) -> list[float]:
    """Return the chances of several tests, corrected so that one in twenty sets of them has a false alarm at 5 %."""
    corrected, reached = [1.0] * len(chances), 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        reached = max(reached, min(1.0, chances[place] * (len(chances) - rank)))
        corrected[place] = reached
    return corrected
