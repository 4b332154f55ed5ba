"""`compare`: the statistics and sentences of `choose` for runs that are there already."""

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lit_gelu.arguments import names_of
from lit_gelu.choose.logged_runs import LAST_STEP, read_runs
from lit_gelu.choose.result import ActivationChoice, CandidateReport, TrainedRun
from lit_gelu.choose.statistics import Metric, direction_of, is_share, listed
from lit_gelu.errors import ArgumentError, shown

Row = Mapping[str, Any]
# What tables call data and budget, and what of a run's settings only names it.
_BUDGET = frozenset({
    "data", "dataset", "batch_size", "epoch", "epochs", "max_epochs", "step", "steps", "max_steps", "_step",
    "global_step",
})  # fmt: skip
_NAMES = frozenset({
    "run", "name", "version", "save_dir", "dirpath", "filename", "log_dir", "default_root_dir", "output", "seed",
    "seed_everything",
})  # fmt: skip
_FAR_APART = 50  # how much larger a value in per cent is than the same as a share, but for what activations change


def compare(
    runs: str | os.PathLike[str] | Iterable[Any],
    *,
    metric: str = "value",
    group: str = "group",
    seed: str = "seed",
    mode: str | None = None,
    baseline: str | None = None,
    ignore: Sequence[str] = (),
) -> ActivationChoice:
    """Compare runs that are there: the same statistics, and the same sentences, as `lit_gelu.choose.choose` gives.

    Runs are paired by seed if each group has one run of each seed, and tested by Student's test of the differences;
    else by Welch's test. All pairs are corrected by Holm's method. A group in which a run diverged, or has no value, is
    named and not compared.

    Args:
        runs: A table: a DataFrame, mappings, or a ``.csv`` file with a line for each run, such as an export of W&B. Or
            log folders of Lightning's ``CSVLogger`` or ``TensorBoardLogger``, searched for runs: a path or several.
        metric: The column, or the logged metric, whose last value decides.
        group: The column, or hyper-parameter, that says what is compared, such as ``"activation"``. The last part of a
            dotted name is enough.
        seed: The same for the seed; ``seed_everything`` is one too.
        mode: ``"min"`` or ``"max"``; by default the metric's name says which.
        baseline: A group; the others are compared with it too.
        ignore: Settings in which runs may differ; the metric, if shares and per cent are not mixed though it seems so.

    Returns:
        The table, the sentences, all figures; its candidates are the groups.

    Raises:
        ArgumentError: If a column is missing, there are fewer than two groups or two runs of one, a seed occurs twice
            in a group, runs differ in another setting, or values are no numbers of one unit.
        DataError: If a file cannot be read.

    Example:
        >>> errors = {"gelu": [2.1, 2.0, 2.2, 1.9, 2.0], "relu": [2.5, 2.3, 2.6, 2.4, 2.3]}
        >>> table = [{"group": g, "seed": s, "error": v} for g, row in errors.items() for s, v in enumerate(row)]
        >>> compare(table, metric="error").verdict[0]
        'gelu is better than relu (p = 0.000529).'
    """
    entries: list[Any] = [runs] if isinstance(runs, str | os.PathLike) else []
    if not entries:
        entries = runs.to_dict("records") if hasattr(runs, "to_dict") else [*runs]  # type: ignore[misc]
    are_paths = all(isinstance(entry, str | os.PathLike) for entry in entries)
    rows: list[Row] = [*read_runs(entries, metric)] if are_paths else entries
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise ArgumentError("There are no runs to compare. Give a table with a row for each, or log folders.")
    columns = [str(name) for name in dict.fromkeys(name for row in rows for name in row)]
    group_column, metric_column = _column(columns, group), _column(columns, metric)
    for asked, column in ((group, group_column), (metric, metric_column)):
        if not column:
            raise ArgumentError(f"There is no column or setting {shown(asked)}. There are {', '.join(columns)}.")
    seed_column = _column(columns, seed) or _column(columns, "seed_everything")
    ignore, baseline = names_of("ignore", ignore), None if baseline is None else str(baseline)
    ignored = {group_column, metric_column, seed_column, *ignore}
    notes = _require_one_setting(rows, [c for c in columns if c not in ignored], [n for n in ignore if n != metric])
    decides = Metric(metric, "val", direction_of(metric, mode))
    groups: dict[str, list[TrainedRun]] = defaultdict(list)
    without_seed: list[str] = []
    for number, row in enumerate(rows):
        name, label = str(row.get("run", f"row {number + 1}")), _text(row.get(group_column))
        if label in {"", "nan", "<NA>"}:  # the last two of a DataFrame
            raise ArgumentError(f"{name} has no {group}. Give each run one, or leave it out.")
        stated = None if str(row.get(seed_column)) in {"None", "True", "False"} else row.get(seed_column)
        number_of_seed = _number(stated, f"{seed} of {name}")
        if number_of_seed is None or not number_of_seed.is_integer():  # NaN where a DataFrame has none
            without_seed.append(name)
            number_of_seed = number
        run = TrainedRun(label, label, int(number_of_seed))
        value = _number(row.get(metric_column), f"{metric} of {name}")
        run.val = {} if value is None else {metric: value}
        groups[label].append(run)
    _require_enough(groups, baseline)
    if metric not in ignore:
        _require_one_unit(decides, [value for some in groups.values() for run in some for value in run.val.values()])
    test, why = _pairing(groups, without_seed)
    reports = [CandidateReport(label, label, sorted(some, key=lambda run: run.seed)) for label, some in groups.items()]
    seeds = sorted({run.seed for some in groups.values() for run in some})
    return ActivationChoice(decides, seeds, reports, baseline, why, notes, test=test, compared=group)


def _column(columns: Sequence[str], name: str) -> str:
    """Return the column of a name: that of the name itself, or the only one whose last part it is; else nothing."""
    if name in columns:
        return name
    ends = [column for column in columns if re.split(r"[./]", column)[-1].lower() == name.lower()]
    return ends[0] if len(ends) == 1 else ""


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _number(value: Any, what: str) -> float | None:
    if not _text(value):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} is {shown(value)}. Give numbers without units, all in the same one.") from None


def _require_one_setting(rows: Sequence[Row], columns: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """Check that runs differ in nothing else, as far as that is known, and say how far it is."""
    are_folders = all(LAST_STEP in row for row in rows)
    settings = [
        column
        for column in columns
        if not _names_a_run(parts := re.split(r"[./]", column.lower()))
        if are_folders or parts[-1] in _BUDGET
    ]
    for column in settings:
        values = list(dict.fromkeys(str(row.get(column)) for row in rows))
        if len(values) > 1:
            raise ArgumentError(
                f"The runs differ in {column} too: {', '.join(values[:4])}. Compare runs that are alike in "
                "all else, or name it in ignore= (--ignore) if it makes no difference."
            )
    alike = [f"All runs have the same {listed(settings)}."] if settings else []
    but = [f"They may differ in {listed(ignore)}."] if ignore else []
    what = "data, code and versions" if are_folders or settings else "data, budget, code and versions"
    source = "the logs do" if are_folders else "the table does"
    return [" ".join([*alike, *but, f"Whether they are alike in {what}, {source} not say."])]


def _names_a_run(parts: Sequence[str]) -> bool:
    """Tell whether a setting only says what a run is called, or where it lies; a model's or data's name is more."""
    of_run = len(parts) == 1 or not {"trainer", "logger", "wandb", "experiment"}.isdisjoint(parts)
    return parts[-1] in _NAMES and (of_run or parts[-1] not in {"name", "version"})


def _require_enough(groups: Mapping[str, Sequence[TrainedRun]], baseline: str | None) -> None:
    if len(groups) < 2:
        raise ArgumentError(f"There is one group alone, {listed(groups)}. Give runs of two or more.")
    if few := [label for label, runs in groups.items() if len(runs) < 2]:
        raise ArgumentError(f"There is one run alone of {listed(few)}, which has no spread. Give two, better five.")
    if baseline is not None and baseline not in groups:
        raise ArgumentError(f"baseline={shown(baseline)} is not compared. Give one of {listed(groups)}.")


def _require_one_unit(metric: Metric, values: Sequence[float]) -> None:
    """Refuse shares beside per cent, where a metric may be either."""
    sizes = np.abs([value for value in values if math.isfinite(value) and value != 0])
    if is_share(metric.name) and len(sizes) and sizes.min() <= 1 and sizes.max() > max(1, _FAR_APART * sizes.min()):
        raise ArgumentError(
            f"{metric.name} goes from {sizes.min():.3g} to {sizes.max():.3g}: some values may be shares and others per "
            "cent. Give all in one unit; if they are, name it in ignore= (--ignore)."
        )


def _pairing(groups: Mapping[str, Sequence[TrainedRun]], without_seed: Sequence[str]) -> tuple[str, str]:
    """Return how differences are tested, and why."""
    if without_seed:
        more = f" and {len(without_seed) - 3} more" if len(without_seed) > 3 else ""
        return "unpaired", f"Not paired: there is no seed of {', '.join(without_seed[:3])}{more}."
    seeds = {label: [run.seed for run in runs] for label, runs in groups.items()}
    for label, some in seeds.items():
        if twice := sorted({number for number in some if some.count(number) > 1}):
            raise ArgumentError(
                f"{label} has several runs with seed {listed(map(str, twice))}. Give one of each, or another group=."
            )
    alone = {label: sorted(set().union(*map(set, seeds.values())) - set(some)) for label, some in seeds.items()}
    lacking = [f"{label} has no run with seed {listed(map(str, some))}" for label, some in alone.items() if some]
    return ("unpaired", f"Not paired: {listed(lacking)}.") if lacking else ("paired", "Paired by seed.")
