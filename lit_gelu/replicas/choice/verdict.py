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
    if not any(found.is_decided for found in differences):
        everyone = listed(list(medians))
        said.append(
            f"Nothing is decided: between {everyone} no difference of {metric.name} is larger than the spread over "
            f"{seeds} seeds."
        )
    else:
        said += _of_best(metric, medians, differences, seeds) + _of_others(metric, list(medians), differences)
    if baseline in medians and baseline != next(iter(medians)):
        said.append(_of_baseline(metric, str(baseline), list(medians), differences))
    return said


def _of_best(
    metric: Metric, medians: Mapping[str, float], differences: Sequence[PairedDifference], seeds: int
) -> list[str]:
    """Say what is decided between the best median and each of the others, and of nothing else."""
    best, *others = medians
    better, worse, same = _against(metric, best, others, differences)
    more, spread = "lower" if metric.mode == "min" else "higher", f"the spread over {seeds} seeds"
    its = f"its {metric.name} (median {medians[best]:.4g})"
    said = []
    if worse:
        said.append(f"{best} is better than {listed(worse)}: {its} is {more} by more than {spread}.")
    if better:  # the mean of the differences is on the other side than the medians
        said.append(
            f"{listed(better)} {'is' if len(better) == 1 else 'are'} better than {best}, though {best} has the best "
            f"median: in the mean over the seeds {metric.name} is {more} by more than {spread}."
        )
    if same and said:
        said.append(f"Between {best} and {_each(same)} there is no such difference.")
    elif same:
        said.append(f"Between {best} and {_each(same)} no difference of {metric.name} is larger than {spread}.")
    return said


def _of_others(metric: Metric, labels: Sequence[str], differences: Sequence[PairedDifference]) -> list[str]:
    """Say what is decided between candidates of which none has the best median."""
    others = labels[1:]
    worse = {label: _against(metric, label, others, differences)[1] for label in others}
    parts = [f"{label} is better than {listed(than)}" for label, than in worse.items() if than]
    return [f"Of the others, {'; '.join(parts)}."] if parts else []


def _against(
    metric: Metric, label: str, others: Sequence[str], differences: Sequence[PairedDifference]
) -> tuple[list[str], list[str], list[str]]:
    """Return which others are better than a candidate, which are worse, and with which nothing is decided."""
    better, worse, same = list[str](), list[str](), list[str]()
    for other in others:
        if other != label:
            found = _between(differences, other, label)
            kind = same if not found.is_decided else better if metric.badness(found.mean) < 0 else worse
            kind.append(other)
    return better, worse, same


def _each(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"each of {listed(labels)}"


def _of_baseline(metric: Metric, baseline: str, labels: Sequence[str], differences: Sequence[PairedDifference]) -> str:
    better, worse, same = _against(metric, baseline, labels, differences)
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
