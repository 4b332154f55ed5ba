"""What the runs decide and what they do not, in plain sentences."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from lit_gelu.choose.intervals import CONFIDENCE, FEWEST_SEEDS, PairedDifference
from lit_gelu.choose.metric import Metric

_SMALLEST = 0.0001  # how much smaller a chance is says nothing more
_INTERVAL = f"{100 * CONFIDENCE:g} % interval"


def sentences(
    metric: Metric,
    medians: Mapping[str, float],
    differences: Sequence[PairedDifference],
    seeds: int,
    baseline: str | None = None,
) -> list[str]:
    """Return what is decided.

    Args:
        metric: What was measured.
        medians: Of the candidates that are compared, by label, the best one first.
        differences: Of all pairs of them.
        seeds: How many seeds each was trained with.
        baseline: What the others are compared with too.
    """
    said = _same_numbers(differences)
    if seeds < FEWEST_SEEDS:
        return [
            *said,
            f"Nothing is decided: {seeds} seeds are too few for an interval. Train at least {FEWEST_SEEDS}.",
        ]
    if len(medians) < 2:
        return [*said, "Nothing is decided: there are no two candidates to compare."]
    differing = [found for found in differences if not found.equal]
    if not differing:
        return said
    if not any(found.is_decided for found in differing):
        said.append(_nothing(differing, list(medians), seeds, len(differences)))
    else:
        said += _of_best(metric, medians, differences, seeds) + _of_others(metric, list(medians), differences)
    if baseline in medians and baseline != next(iter(medians)):
        said.append(_of_baseline(metric, str(baseline), list(medians), differences))
    return said


def _nothing(differing: Sequence[PairedDifference], labels: Sequence[str], seeds: int, pairs: int) -> str:
    """Say that no pair is decided, and why not."""
    if len(differing) == 1:
        (found,) = differing
        return f"Nothing is decided between {found.of} and {found.to}: {_why_not([found], seeds, pairs)}."
    least = min(found.p for found in differing if found.p is not None)
    return (
        f"Nothing is decided between {listed(labels)}: for each pair the {_INTERVAL} includes 0, or the test over "
        f"{seeds} seeds does not agree (the smallest p is {least:.3g}, corrected for {pairs} pairs)."
    )


def _of_best(
    metric: Metric, medians: Mapping[str, float], differences: Sequence[PairedDifference], seeds: int
) -> list[str]:
    """Say what is decided between the best median and each of the others, and of nothing else."""
    best, *others = medians
    better, worse, open_ = _against(metric, best, others, differences)
    more = "lower" if metric.mode == "min" else "higher"
    its = f"its {metric.name} (median {medians[best]:.4g})"
    pairs = len(differences)
    said = []
    if worse:
        said.append(f"{best} is better than {_all(worse)}: {its} is {more}. {_why(worse, seeds, pairs)}")
    if better:  # the mean of the differences is on the other side than the medians
        said.append(
            f"{_all(better)} {_is(better)} better than {best}, though {best} has the best median: in the mean over the "
            f"seeds {metric.name} is {more}. {_why(better, seeds, 1 if said else pairs)}"
        )
    for excludes in (True, False):
        kind = {label: found for label, found in open_.items() if _excludes_0(found) == excludes}
        if kind:
            why = _why_not(list(kind.values()), seeds, 1 if said else pairs)  # it is said once
            said.append(f"Not decided between {best} and {_each(list(kind))}: {why}.")
    return said


def _of_others(metric: Metric, labels: Sequence[str], differences: Sequence[PairedDifference]) -> list[str]:
    """Say what is decided between candidates of which none has the best median."""
    others = labels[1:]
    worse = ((label, _against(metric, label, others, differences)[1]) for label in others)
    parts = [f"{label} is better than {_all(than)} ({_chances(than.values())})" for label, than in worse if than]
    return [f"Of the others, {'; '.join(parts)}."] if parts else []


def _of_baseline(metric: Metric, baseline: str, labels: Sequence[str], differences: Sequence[PairedDifference]) -> str:
    better, worse, open_ = _against(metric, baseline, labels, differences)
    parts = [
        f"{_all(those)} {_is(those)} {what} ({_chances(those.values())})"
        for those, what in ((better, "better"), (worse, "worse"), (open_, "not decided"))
        if those
    ]
    return f"Against the baseline {baseline}: {'; '.join(parts)}."


def _against(
    metric: Metric, label: str, others: Sequence[str], differences: Sequence[PairedDifference]
) -> tuple[dict[str, PairedDifference], dict[str, PairedDifference], dict[str, PairedDifference]]:
    """Return which others are better than a candidate, which are worse, and with which it is not decided."""
    better, worse, open_ = dict[str, PairedDifference](), dict[str, PairedDifference](), dict[str, PairedDifference]()
    for other in others:
        if other == label:
            continue
        found = _between(differences, other, label)
        if not found.equal:  # of those with equal numbers it is said that they are equal
            kind = open_ if not found.is_decided else better if metric.badness(found.mean) < 0 else worse
            kind[other] = found
    return better, worse, open_


def _why(decided: Mapping[str, PairedDifference], seeds: int, pairs: int) -> str:
    """Say by what differences are decided."""
    return (
        f"This is decided: the {_INTERVAL} excludes 0, and the test over {seeds} seeds agrees "
        f"({_chances(decided.values())}{_corrected(pairs)})."
    )


def _why_not(found: Sequence[PairedDifference], seeds: int, pairs: int) -> str:
    """Say why differences are not decided, of which all intervals or none exclude 0."""
    chances = f"{_chances(found)}{_corrected(pairs)}"
    if _excludes_0(found[0]):
        return f"the {_INTERVAL} excludes 0, but the test over {seeds} seeds does not agree ({chances})"
    return f"the {_INTERVAL} includes 0 ({chances})"


def _excludes_0(found: PairedDifference) -> bool:
    return found.low is not None and found.high is not None and (found.low > 0 or found.high < 0)


def _chances(found: Iterable[PairedDifference]) -> str:
    texts = [f"p < {_SMALLEST}" if p < _SMALLEST else f"p = {p:.3g}" for p in (one.p for one in found) if p is not None]
    return listed(texts[:1] if len(set(texts)) == 1 else texts)


def _corrected(pairs: int) -> str:
    return f", corrected for {pairs} pairs" if pairs > 1 else ""


def _all(labels: Iterable[str]) -> str:
    return listed(list(labels))


def _is(labels: Collection[str]) -> str:
    return "is" if len(labels) == 1 else "are"


def _each(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"each of {listed(labels)}"


def _same_numbers(differences: Sequence[PairedDifference]) -> list[str]:
    """Say which candidates gave the same in every run."""
    groups: list[list[str]] = []
    for found in differences:
        if found.equal:
            home = next((group for group in groups if found.of in group or found.to in group), None)
            if home is None:
                groups.append([found.of, found.to])
            else:
                home.extend(label for label in (found.of, found.to) if label not in home)
    return [
        f"{listed(group)} gave the same numbers with every seed: there is no difference between them."
        for group in groups
    ]


def _between(differences: Sequence[PairedDifference], of: str, to: str) -> PairedDifference:
    for found in differences:
        if {found.of, found.to} == {of, to}:
            return found if found.of == of else found.reversed()
    raise KeyError((of, to))


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
