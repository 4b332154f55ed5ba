"""From runs to the numbers that the paper reports: which evaluation of a run counts, and which learning rate.

The paper says "we tune the learning rate ... and report the median of five runs" and, for TIMIT, "the test error at the
lowest validation error" (Hendrycks and Gimpel 2016, arXiv 1606.08415, sections 3.1 to 3.4); its code stores whole
histories and selects nothing. The rule here, an assumption for the other tasks: a run counts by its evaluation with the
lowest validation error, the learning rate is the one with the lowest median of it over the seeds, and reported is the
median of the test errors at those evaluations. The CIFAR nets and the autoencoder count by their last evaluation, where
the paper's curves end. The test set never chooses anything.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gelu_paper.errors import PaperArgumentError, RecordsError
from gelu_paper.protocol.experiments import Experiment
from gelu_paper.protocol.experiments import Selection as Rule
from gelu_paper.records.run_record import RunRecord
from gelu_paper.results.medians import Summary, infinite_if_not_finite
from gelu_paper.results.one_protocol import check_one_protocol

LEARNING_RATE = "learning_rate"


@dataclass(frozen=True)
class Outcome:
    """One run in the two numbers that count, infinite if it diverged."""

    validation: float | None  # its lowest validation error, by which it is compared; None without a validation set
    test: float | None  # the error (or loss) that is reported for it; None if none was measured


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm with one learning rate and one setting, by seed, and what each came to."""

    setting: Mapping[str, float]
    learning_rate: float
    runs: tuple[RunRecord, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def validation(self) -> Summary | None:
        """The validation errors; ``None`` if the task has no validation set."""
        return _summary(outcome.validation for outcome in self.outcomes)

    @property
    def test(self) -> Summary | None:
        """The test errors; ``None`` if they were not measured."""
        return _summary(outcome.test for outcome in self.outcomes)

    @property
    def diverged(self) -> int:
        """How many of the runs diverged."""
        return sum(run.status == "diverged" for run in self.runs)

    def __str__(self) -> str:
        """Return learning rate and setting in words."""
        return f"learning rate {_in_words(self.learning_rate, self.setting)}"


@dataclass(frozen=True)
class ArmChoice:
    """What the validation set chose for an arm, or what there was to report without a choice."""

    chosen: ArmRuns  # the one that is reported
    candidates: tuple[ArmRuns, ...]  # all in competition, the largest learning rate first; one if nothing is tuned
    remarks: tuple[str, ...]  # what a reader has to know: ties, missing seeds, runs that diverged


def outcome(record: RunRecord, rule: Rule = "best_validation", metric: str = "test_error") -> Outcome:
    """Return the numbers that a run counts by, at the evaluation that the rule names."""
    # Of several evaluations with the lowest validation error it is the first: the test set has no say.
    curve = record.curves.get("val_error")
    has_validation = curve is not None and bool(curve.value)
    if record.status == "diverged":
        return Outcome(None if rule == "last" and not has_validation else math.inf, math.inf)
    if rule == "last":
        return Outcome(_lowest(record)[0] if has_validation else None, _last(record, metric))
    if not has_validation:
        raise RecordsError(f"The run {record.key!r} has no validation error, so it cannot be selected by it.")
    lowest, epoch = _lowest(record)
    return Outcome(lowest, _at(record, metric, epoch))


def candidates_of(
    records: Iterable[RunRecord], rule: Rule = "best_validation", metric: str = "test_error"
) -> list[ArmRuns]:
    """Group the runs of one arm: the largest learning rate first, of equal ones the largest setting."""
    groups: dict[tuple[float, tuple[tuple[str, float], ...]], list[RunRecord]] = defaultdict(list)
    for record in records:
        groups[-record.learning_rate, tuple((name, -value) for name, value in record.setting.items())].append(record)
    candidates = []
    for _, group in sorted(groups.items(), key=lambda item: item[0]):
        runs = tuple(sorted(group, key=lambda run: run.seed))
        outcomes = tuple(outcome(run, rule, metric) for run in runs)
        candidates.append(ArmRuns(runs[0].setting, runs[0].learning_rate, runs, outcomes))
    return candidates


def select(candidates: Sequence[ArmRuns], seeds: Collection[int] = ()) -> ArmChoice:
    """Choose among candidates by the median over the seeds of their lowest validation errors."""
    # A candidate that lacks seeds takes part with those it has. Of those that tie the first is taken, which has the
    # largest learning rate. A remark says so. A single candidate needs no validation error.
    if not candidates:
        raise PaperArgumentError("No runs given; a selection needs at least one.")
    remarks = [*_missing_seeds(candidates, seeds), *_divergence(candidates)]
    if len(candidates) == 1:
        return ArmChoice(candidates[0], tuple(candidates), tuple(remarks))
    medians = []
    for candidate in candidates:
        if candidate.validation is None:
            raise RecordsError(f"The run {candidate.runs[0].key!r} has no validation error to be selected by.")
        medians.append(candidate.validation.median)
    tied = [candidate for candidate, median in zip(candidates, medians, strict=True) if median == min(medians)]
    if len(tied) > 1:
        remarks.insert(0, f"{' and '.join(map(str, tied))} tie on the validation error: the first is taken")
    return ArmChoice(tied[0], tuple(candidates), tuple(remarks))


def choices(experiment: Experiment, arm: str, records: Iterable[RunRecord]) -> list[ArmChoice]:
    """Return what is reported for an arm: one choice for each value of what is not tuned, in the experiment's order."""
    of_experiment = [record for record in records if record.experiment == experiment.name]
    check_one_protocol(of_experiment)
    runs = [record for record in of_experiment if record.arm == arm]
    groups: dict[tuple[tuple[str, float], ...], list[ArmRuns]] = defaultdict(list)
    for candidate in candidates_of(runs, experiment.selection, experiment.metric):
        groups[_fixed(experiment, candidate)].append(candidate)
    return [
        _with_what_is_missing(experiment, arm, select(group, range(experiment.seeds)))
        for _, group in sorted(groups.items(), key=lambda item: _place(experiment, item[0]))
    ]


def place_of(experiment: Experiment, candidate: ArmRuns) -> tuple[float, ...]:
    """Return a key that sorts the choices of several arms as those of one are."""
    return _place(experiment, _fixed(experiment, candidate))


def _fixed(experiment: Experiment, candidate: ArmRuns) -> tuple[tuple[str, float], ...]:
    """Return what is not chosen by the validation set, and so is reported separately."""
    values = dict(candidate.setting) | {LEARNING_RATE: candidate.learning_rate}
    return tuple((name, value) for name, value in values.items() if name not in experiment.tuned)


def _place(experiment: Experiment, fixed: tuple[tuple[str, float], ...]) -> tuple[float, ...]:
    """Return where a group stands: the experiment's settings in their own order, what it does not list last."""
    place = []
    for name, value in fixed:
        listed = experiment.settings.get(name, ())
        place += [float(listed.index(value)) if value in listed else float(len(listed)), -value]
    return tuple(place)


def _lowest(record: RunRecord) -> tuple[float, float]:
    """Return a run's lowest validation error and the epochs that had passed when it was first measured."""
    curve = record.curves["val_error"]
    values = [infinite_if_not_finite(value) for value in curve.value]
    return min(values), curve.epoch[values.index(min(values))]


def _last(record: RunRecord, metric: str) -> float:
    curve = record.curves.get(metric)
    if curve is None or not curve.value:
        raise RecordsError(f"The run {record.key!r} has no {metric}, which its experiment reports.")
    return infinite_if_not_finite(curve.value[-1])


def _at(record: RunRecord, metric: str, epoch: float) -> float | None:
    """Return what was measured together with a validation error; ``None`` if the run has no such curve at all."""
    curve = record.curves.get(metric)
    if curve is None or not curve.value:
        return None
    if epoch not in curve.epoch:
        raise RecordsError(f"The run {record.key!r} has no {metric} at epoch {epoch:g}, its lowest validation error.")
    return infinite_if_not_finite(curve.value[curve.epoch.index(epoch)])


def _summary(values: Iterable[float | None]) -> Summary | None:
    """Summarise; a run that diverged has every number, so it does not make up one that no other run has."""
    given = list(values)
    measured = tuple(value for value in given if value is not None)
    return Summary(measured) if len(measured) == len(given) else None


def _missing_seeds(candidates: Sequence[ArmRuns], seeds: Collection[int]) -> list[str]:
    expected = {run.seed for candidate in candidates for run in candidate.runs} | set(seeds)
    return [
        f"{candidate}: {len(candidate.runs)} of {len(expected)} seeds"
        for candidate in candidates
        if {run.seed for run in candidate.runs} != expected
    ]


def _with_what_is_missing(experiment: Experiment, arm: str, choice: ArmChoice) -> ArmChoice:
    """Say which learning rates, and which settings that are chosen too, took no part in the choice."""
    if LEARNING_RATE not in experiment.tuned:
        return choice
    tried = {_tuned(experiment, one.learning_rate, one.setting) for one in choice.candidates}
    settings = experiment.arms[arm].settings if arm in experiment.arms else None
    offered = {
        name: values
        for name, values in (experiment.settings if settings is None else settings).items()
        if name in experiment.tuned
    }
    missing = [
        _in_words(rate, setting)
        for rate in experiment.learning_rates
        for values in itertools.product(*offered.values())
        for setting in [dict(zip(offered, values, strict=True))]
        if _tuned(experiment, rate, setting) not in tried
    ]
    if not missing:
        return choice
    fixed = "".join(f"{name} {value:g}: " for name, value in _fixed(experiment, choice.chosen))
    joined = "; ".join(missing) if offered else ", ".join(missing)
    return replace(choice, remarks=(*choice.remarks, f"{fixed}not run at learning rate {joined}"))


def _tuned(experiment: Experiment, learning_rate: float, setting: Mapping[str, float]) -> tuple[object, ...]:
    """Return what the validation set chooses of a run."""
    return learning_rate, *sorted((name, value) for name, value in setting.items() if name in experiment.tuned)


def _in_words(learning_rate: float, setting: Mapping[str, float]) -> str:
    return f"{learning_rate:g}" + "".join(f", {name} {value:g}" for name, value in setting.items())


def _divergence(candidates: Sequence[ArmRuns]) -> list[str]:
    return [
        f"{candidate}: {candidate.diverged} of {len(candidate.runs)} runs diverged"
        for candidate in candidates
        if candidate.diverged
    ]
