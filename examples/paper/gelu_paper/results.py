"""From runs to the numbers that the paper reports: which evaluation of a run counts, and which learning rate.

The paper says "we tune the learning rate ... and report the median of five runs" and, for TIMIT, "the test error at the
lowest validation error" (Hendrycks and Gimpel 2016, arXiv 1606.08415, sections 3.1 to 3.4); its code stores whole
histories and selects nothing. The rule here, an assumption for the other tasks: a run counts by its evaluation with the
lowest validation error, the learning rate is the one with the lowest median of it over the seeds, and reported is the
median of the test errors at those evaluations. The CIFAR nets and the autoencoder count by their last evaluation, where
the paper's curves end. The test set never chooses anything.

A run that diverged is worse than any other: its values are infinite here, in medians too, and never left out.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from gelu_paper.experiments import LEARNING_RATE, Experiment
from gelu_paper.records import RunRecord, check_one_protocol
from lit_gelu.errors import DataError


@dataclass(frozen=True)
class Choice:
    """What is reported for an arm: the learning rate and the settings that the validation set chose, and their runs."""

    arm: str
    setting: Mapping[str, float]
    learning_rate: float
    runs: tuple[RunRecord, ...]  # by seed
    validation: pd.Series | None  # the lowest validation errors of the runs; None if the task has no validation set
    test: pd.Series | None  # what is reported of each run; None if it was not measured
    is_tuned: bool  # whether there were several to choose among
    remarks: tuple[str, ...]  # what a reader has to know: ties, missing seeds, runs that diverged

    @property
    def diverged(self) -> int:
        """How many of the runs diverged."""
        return sum(run.status == "diverged" for run in self.runs)


def choices(experiment: Experiment, records: Iterable[RunRecord]) -> list[Choice]:
    """Return what is reported of an experiment: for each value of what is not tuned, then for each arm, one choice.

    Args:
        experiment: The experiment.
        records: Its runs; others are passed over.

    Returns:
        The choices: settings and arms in the experiment's order, the largest learning rate first.

    Raises:
        DataError: If the runs are of two protocols, or lack what the experiment reports.
    """
    runs = [record for record in records if record.experiment == experiment.name]
    check_one_protocol(runs)
    if not runs:
        return []
    names = [LEARNING_RATE, *dict.fromkeys(name for run in runs for name in run.setting)]
    frame = pd.DataFrame([
        {**run.setting, LEARNING_RATE: run.learning_rate, "arm": run.arm, "seed": run.seed, "run": run, **outcome}
        for run in runs
        for outcome in [_outcome(experiment, run)]
    ])
    fixed = [name for name in names if name not in experiment.tuned]
    place = {name: {value: rank for rank, value in enumerate(values)} for name, values in experiment.settings.items()}
    place["arm"] = {arm: rank for rank, arm in enumerate(dict.fromkeys([*experiment.arms, *frame["arm"]]))}

    def rank(column: pd.Series) -> pd.Series:
        """Sort by the experiment's order where it has one, else the largest first; seeds and runs ascend."""
        if column.name in place:
            return column.map(place[str(column.name)])
        return column if column.name == "seed" else -column

    tuned = [name for name in names if name in experiment.tuned]
    frame = frame.sort_values([*fixed, "arm", *tuned, "seed"], key=rank)
    return [
        _choice(experiment, arms_runs, [*tuned, *fixed])
        for _, arms_runs in frame.groupby([*fixed, "arm"], sort=False, dropna=False)
    ]


def median_curve(runs: Sequence[RunRecord], name: str) -> pd.DataFrame | None:
    """Return median, low and high of a curve over runs that differ in their seeds only, by epoch.

    Args:
        runs: The runs; one that diverged counts as infinite behind its end.
        name: Of the curve, or ``"noise error"`` and ``"noise loss"``, whose index are the levels of noise.

    Returns:
        Columns ``median``, ``low`` and ``high``; ``None`` if no run has the curve.

    Raises:
        DataError: If the runs were measured at different epochs.
    """
    columns = {run.key: column for run in runs if (column := _column(run, name)) is not None}
    if not columns:
        return None
    index = max(columns.values(), key=len).index
    arrays = {}
    for run in runs:
        column = columns.get(run.key, pd.Series(dtype=float))
        if run.status == "diverged":
            column = pd.Series([*column, *[math.inf] * (len(index) - len(column))], index=index)
        if len(column) != len(index) or not all(map(math.isclose, column.index, index)):
            raise DataError(
                f"{run.key!r} was measured at other epochs or levels than the runs with other seeds: there is no "
                f"median of {name}. Repeat the runs in another folder."
            )
        arrays[run.key] = column.to_numpy()
    values = pd.DataFrame(arrays, index=index).fillna(math.inf)
    return pd.DataFrame({"median": values.median(axis=1), "low": values.min(axis=1), "high": values.max(axis=1)})


def curve_values(runs: Sequence[RunRecord], name: str, epoch: float) -> pd.Series | None:
    """Return what each run measured when so many epochs had passed; ``None`` if none was measured there."""
    values = []
    for run in runs:
        column = _column(run, name)
        there = (
            []
            if column is None
            else [value for at, value in zip(column.index, column, strict=True) if math.isclose(at, epoch)]
        )
        if not there and run.status != "diverged":
            return None
        values.append(there[0] if there else math.inf)
    return pd.Series(values, dtype=float).fillna(math.inf)


def _column(run: RunRecord, name: str) -> pd.Series | None:
    if name.startswith("noise "):
        noisy = run.robustness
        if noisy is None:
            return None
        values = noisy.error if name == "noise error" else noisy.loss
        return pd.Series(values, index=noisy.levels, dtype=float)
    curve = run.curves.get(name)
    return None if curve is None else pd.Series(curve.value, index=curve.epoch, dtype=float)


def _outcome(experiment: Experiment, run: RunRecord) -> dict[str, float]:
    """Return the two numbers that a run counts by: "validation" and "test"; NaN for what the task does not measure."""
    # Of several evaluations with the lowest validation error it is the first: the test set has no say.
    validation, test = (_column(run, name) for name in ("val_error", experiment.metric))
    if validation is not None:
        validation = validation.fillna(math.inf)
    lowest = math.nan if validation is None else validation.min()
    if run.status == "diverged":
        return {"validation": lowest if validation is None else math.inf, "test": math.inf}
    if experiment.selection == "last":
        if test is None:
            raise DataError(f"The run {run.key!r} has no {experiment.metric}, which its experiment reports.")
        value = test.iloc[-1]
    elif validation is None:
        raise DataError(f"The run {run.key!r} has no validation error, so it cannot be selected by it.")
    elif test is None:
        return {"validation": lowest, "test": math.nan}
    else:
        value = test.iloc[int(validation.to_numpy().argmin())]
    return {"validation": lowest, "test": value if math.isfinite(value) else math.inf}


def _choice(experiment: Experiment, frame: pd.DataFrame, names: Sequence[str]) -> Choice:
    """Choose among an arm's learning rates and settings, which are in the order in which ties are decided."""
    candidates = [group for _, group in frame.groupby(list(names), sort=False, dropna=False)]
    arm, chosen = str(frame["arm"].iloc[0]), candidates[0]
    remarks = []
    if len(candidates) > 1:
        if frame["validation"].isna().any():
            raise DataError(f"Runs of {experiment.name!r} have no validation error to be selected by.")
        medians = [candidate["validation"].median() for candidate in candidates]
        tied = [candidate for candidate, median in zip(candidates, medians, strict=True) if median == min(medians)]
        chosen = tied[0]
        if len(tied) > 1:
            remarks.append(f"{' and '.join(map(_in_words, tied))} tie on the validation error: the first is taken")
    seeds = {*frame["seed"], *range(experiment.seeds)}
    remarks += [
        f"{_in_words(candidate)}: {len(candidate)} of {len(seeds)} seeds"
        for candidate in candidates
        if {*candidate["seed"]} != seeds
    ]
    for candidate in candidates:
        diverged = sum(run.status == "diverged" for run in candidate["run"])
        remarks += [f"{_in_words(candidate)}: {diverged} of {len(candidate)} runs diverged"] if diverged else []
    remarks += _not_run(experiment, frame)
    runs = tuple(chosen["run"])
    return Choice(
        arm=arm,
        setting=runs[0].setting,
        learning_rate=runs[0].learning_rate,
        runs=runs,
        validation=None if chosen["validation"].isna().any() else chosen["validation"],
        test=None if chosen["test"].isna().any() else chosen["test"],
        is_tuned=len(candidates) > 1,
        remarks=tuple(remarks),
    )


def _not_run(experiment: Experiment, frame: pd.DataFrame) -> Iterator[str]:
    """Say which learning rates took no part in the choice."""
    if LEARNING_RATE in experiment.tuned:
        missing = [f"{rate:g}" for rate in experiment.learning_rates if rate not in set(frame[LEARNING_RATE])]
        if missing:
            yield f"not run at learning rate {', '.join(missing)}"


def _in_words(candidate: pd.DataFrame) -> str:
    run = candidate["run"].iloc[0]
    return f"learning rate {run.learning_rate:g}" + "".join(f", {name} {x:g}" for name, x in run.setting.items())
