"""Differences between candidates that were trained with the same seeds, and what they decide, in plain sentences.

Runs are paired by seed: the differences at equal seeds are one sample, whose mean has Student's 95 % interval and
Student's two-sided test against 0. The tests of all pairs are corrected by Holm's method (Holm 1979, A simple
sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6).
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lit_gelu.display import Displayed

CONFIDENCE = 0.95
FEWEST_SEEDS = 5  # four differences of one sign come by chance in one of eight cases, however small they are
_ROUNDING = 1e-6  # of the largest value: what is logged is float32, and a mean over batches rounds some times more
_SMALLEST = 0.0001  # how much smaller p is says nothing more
_INTERVAL = f"{100 * CONFIDENCE:g} % interval"


@dataclass(frozen=True, repr=False)
class PairedDifference(Displayed):
    """How much a candidate's metric is above another's, over the seeds of both.

    Args:
        of: The label of the one.
        to: The label of the other.
        seeds: How many.
        mean: Of the differences at equal seeds; above 0 if the first has more.
        low: The lower end of the 95 % interval; ``None`` with less than five seeds.
        high: Its upper end.
        p: How often chance alone makes a mean as far from 0, corrected for all pairs.
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
    def excludes_zero(self) -> bool:
        """Whether the interval is on one side of 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def is_decided(self) -> bool:
        """Whether both say that it is not 0: the interval, and the test with its correction for all pairs."""
        return not self.equal and self.excludes_zero and self.p is not None and self.p < 1 - CONFIDENCE

    def reversed(self) -> "PairedDifference":
        """Return the same with its sign turned."""
        low, high = None if self.high is None else -self.high, None if self.low is None else -self.low
        return PairedDifference(self.to, self.of, self.seeds, -self.mean, low, high, self.p, self.equal)


def all_differences(values: Mapping[str, Sequence[float]]) -> list[PairedDifference]:
    """Return the differences of all pairs.

    Args:
        values: Finite numbers by label, in the order of the seeds.

    Returns:
        One for each pair, in the order of the labels.

    Example:
        >>> (row,) = all_differences({"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [0.0, 1.5, 1.0, 3.0, 3.0]})
        >>> row.mean, round(row.low, 4), round(row.high, 4), round(row.p, 4)
        (1.3, 0.4671, 2.1329, 0.0123)
    """
    pairs = list(itertools.combinations(values, 2))
    samples = [np.subtract(values[of], values[to]) for of, to in pairs]
    rounding = [_ROUNDING * float(np.abs([values[of], values[to]]).max(initial=0)) for of, to in pairs]
    tests = [paired_test(sample, limit) for sample, limit in zip(samples, rounding, strict=True)]
    corrected = holm([p for p, _, _ in tests])
    rows = []
    for (of, to), sample, (_, low, high), p in zip(pairs, samples, tests, corrected, strict=True):
        seeds, mean = len(sample), float(sample.mean())
        shown = (low, high) if seeds >= FEWEST_SEEDS else (None, None)
        rows.append(
            PairedDifference(of, to, seeds, mean, shown[0], shown[1], p if seeds > 1 else None, not np.any(sample))
        )
    return rows


def paired_test(differences: np.ndarray, rounding: float = 0.0) -> tuple[float, float, float]:
    """Return ``p`` of Student's test that the mean is 0, two-sided, and the ends of its 95 % interval."""
    # ``p`` is 1 if all differences are as small as rounding, or there are less than two. Where all are one number but
    # for rounding, as errors on a hundred samples may be, they have no spread to be tested by: then by their signs,
    # ``p = 2 / 2^n``.
    from scipy import stats  # half a second

    mean = float(differences.mean())
    if len(differences) < 2 or float(np.abs(differences).max()) <= rounding:
        return 1.0, mean, mean
    if float(np.ptp(differences)) <= rounding:
        return 2.0 ** (1 - len(differences)), mean, mean
    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(CONFIDENCE)
    return float(test.pvalue), float(interval.low), float(interval.high)


def holm(chances: Sequence[float]) -> list[float]:
    """Return ``p`` of several tests, corrected so that one in twenty sets of them has a false alarm at 5 %."""
    corrected, reached = [1.0] * len(chances), 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        reached = max(reached, min(1.0, chances[place] * (len(chances) - rank)))
        corrected[place] = reached
    return corrected


class Verdict:
    """What is decided, in sentences: of candidates' medians by label, the best one first, and all their differences."""

    def __init__(
        self, name: str, mode: str, medians: Mapping[str, float], differences: Sequence[PairedDifference], seeds: int
    ) -> None:
        self.name, self.mode, self.medians, self.seeds = name, mode, medians, seeds
        self.differences = {(d.of, d.to): d for one in differences for d in (one, one.reversed())}
        self.pairs = len(differences)

    def sentences(self, baseline: str | None = None) -> list[str]:
        """Return the sentences, with one about the baseline if there is one."""
        lines = self._same_numbers()
        if self.seeds < FEWEST_SEEDS:
            few = f"{self.seeds} seeds are too few for an interval. Train at least {FEWEST_SEEDS}."
            return [*lines, f"Nothing is decided: {few}"]
        if len(self.medians) < 2:
            return [*lines, "Nothing is decided: there are no two candidates to compare."]
        labels = list(self.medians)
        differing = [
            difference
            for (of, to), difference in self.differences.items()
            if not difference.equal and labels.index(of) < labels.index(to)
        ]
        if not differing:
            return lines
        if any(difference.is_decided for difference in differing):
            lines += self._of_best() + self._of_others()
        elif len(differing) == 1:
            (only,) = differing
            lines.append(f"Nothing is decided between {only.of} and {only.to}: {self._why_not([only], self.pairs)}.")
        else:
            least = min(difference.p for difference in differing if difference.p is not None)
            lines.append(
                f"Nothing is decided between {listed(self.medians)}: for each pair the {_INTERVAL} includes 0, or the "
                f"test over {self.seeds} seeds does not agree (the smallest p is {least:.3g}, corrected for "
                f"{self.pairs} pairs)."
            )
        if baseline is not None and baseline in labels[1:]:
            kinds = zip(self._against(baseline, self.medians), ("better", "worse", "not decided"), strict=True)
            parts = [f"{listed(kind)} {_is(kind)} {what} ({_chances(kind.values())})" for kind, what in kinds if kind]
            lines.append(f"Against the baseline {baseline}: {'; '.join(parts)}.")
        return lines

    def _against(self, label: str, others: Iterable[str]) -> tuple[dict[str, PairedDifference], ...]:
        """Return which others are better than a candidate, which are worse, and with which it is not decided."""
        better, worse, undecided = dict[str, PairedDifference](), dict[str, PairedDifference](), {}
        for other in others:
            difference = None if other == label else self.differences[other, label]
            if difference is None or difference.equal:  # of those with equal numbers it is said that they are equal
                continue
            if not difference.is_decided:
                undecided[other] = difference
            elif (difference.mean < 0) == (self.mode == "min"):
                better[other] = difference
            else:
                worse[other] = difference
        return better, worse, undecided

    def _of_best(self) -> list[str]:
        """Say what is decided between the best median and each of the others, and of nothing else."""
        best, *others = self.medians
        better, worse, undecided = self._against(best, others)
        more = "lower" if self.mode == "min" else "higher"
        lines = []
        if worse:
            median = f"its {self.name} (median {self.medians[best]:.4g})"
            lines.append(f"{best} is better than {listed(worse)}: {median} is {more}. {self._why(worse, self.pairs)}")
        if better:  # the mean of the differences is on the other side than the medians
            lines.append(
                f"{listed(better)} {_is(better)} better than {best}, though {best} has the best median: in the mean "
                f"over the seeds {self.name} is {more}. {self._why(better, 1 if lines else self.pairs)}"
            )
        for excludes in (True, False):
            kind = {label: d for label, d in undecided.items() if d.excludes_zero == excludes}
            if kind:
                why = self._why_not(list(kind.values()), 1 if lines else self.pairs)  # the correction is said once
                each = listed(kind) if len(kind) == 1 else f"each of {listed(kind)}"
                lines.append(f"Not decided between {best} and {each}: {why}.")
        return lines

    def _of_others(self) -> list[str]:
        """Say what is decided between candidates of which none has the best median."""
        others = list(self.medians)[1:]
        worse = {label: self._against(label, others)[1] for label in others}
        parts = [
            f"{one} is better than {listed(than)} ({_chances(than.values())})" for one, than in worse.items() if than
        ]
        return [f"Of the others, {'; '.join(parts)}."] if parts else []

    def _why(self, decided: Mapping[str, PairedDifference], pairs: int) -> str:
        return (
            f"This is decided: the {_INTERVAL} excludes 0, and the test over {self.seeds} seeds agrees "
            f"({_chances(decided.values())}{_corrected(pairs)})."
        )

    def _why_not(self, undecided: Sequence[PairedDifference], pairs: int) -> str:
        """Say why differences are not decided, of which all intervals or none exclude 0."""
        chances = f"{_chances(undecided)}{_corrected(pairs)}"
        if undecided[0].excludes_zero:
            return f"the {_INTERVAL} excludes 0, but the test over {self.seeds} seeds does not agree ({chances})"
        return f"the {_INTERVAL} includes 0 ({chances})"

    def _same_numbers(self) -> list[str]:
        """Say which candidates gave the same in every run."""
        groups: list[list[str]] = []
        for label in self.medians:
            same = next((group for group in groups if self.differences[label, group[0]].equal), None)
            if same is None:
                groups.append([label])
            else:
                same.append(label)
        equal = "gave the same numbers with every seed: there is no difference between them."
        return [f"{listed(group)} {equal}" for group in groups if len(group) > 1]


def _chances(differences: Iterable[PairedDifference]) -> str:
    chances = [difference.p for difference in differences if difference.p is not None]
    texts = [f"p < {_SMALLEST}" if p < _SMALLEST else f"p = {p:.3g}" for p in chances]
    return listed(texts[:1] if len(set(texts)) == 1 else texts)


def _corrected(pairs: int) -> str:
    return f", corrected for {pairs} pairs" if pairs > 1 else ""


def _is(labels: Collection[str]) -> str:
    return "is" if len(labels) == 1 else "are"


def listed(words: Iterable[str]) -> str:
    """Return words as a list in a sentence.

    Example:
        >>> listed(["gelu", "silu", "relu"])
        'gelu, silu and relu'
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
