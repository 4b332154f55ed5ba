"""What the runs decide and what they do not, in plain sentences."""

from collections.abc import Mapping, Sequence

from lit_gelu.replicas.choice.intervals import FEWEST_SEEDS, PairedDifference
from lit_gelu.replicas.choice.metric import Metric


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
    best, *others = medians
    # The mean of the differences may be on the other side than the medians: then best is not shown to be better.
    decided = [
        label
        for label in others
        if (found := _between(differences, best, label)).is_decided and metric.badness(found.mean) < 0
    ]
    said.append(_of_best(metric, best, medians[best], decided, others, seeds))
    if baseline in medians and baseline != best:
        said.append(_of_baseline(metric, str(baseline), list(medians), differences))
    return said


def _of_best(
    metric: Metric, best: str, median: float, decided: Sequence[str], others: Sequence[str], seeds: int
) -> str:
    open_ones = [label for label in others if label not in decided]
    if not decided:
        return (
            f"Nothing is decided: between {listed([best, *open_ones])} no difference of {metric.name} is larger than "
            f"the spread over {seeds} seeds."
        )
    more = "lower" if metric.mode == "min" else "higher"
    text = (
        f"{best} is better than {listed(decided)}: its {metric.name} (median {median:.4g}) is {more} by more than the "
        f"spread over {seeds} seeds."
    )
    return f"{text} Between {listed([best, *open_ones])} there is no such difference." if open_ones else text


def _of_baseline(metric: Metric, baseline: str, labels: Sequence[str], differences: Sequence[PairedDifference]) -> str:
    better, worse, same = list[str](), list[str](), list[str]()
    for label in labels:
        if label != baseline:
            found = _between(differences, label, baseline)
            kind = same if not found.is_decided else better if metric.badness(found.mean) < 0 else worse
            kind.append(label)
    parts = [
        f"{listed(those)} {'is' if len(those) == 1 else 'are'} {what}"
        for those, what in ((better, "better"), (worse, "worse"), (same, "no different beyond the spread"))
        if those
    ]
    return f"Against the baseline {baseline}: {'; '.join(parts)}."


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
