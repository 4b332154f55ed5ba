"""The protocol's tables: medians and spread of the runs, beside the paper's numbers; as Markdown and CSV.

Numbers are rounded to the nearest, ties upwards: never in favour of what was measured, since all of it is better when
smaller. Differences are taken before rounding. CSV has every number as it was computed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal
from typing import Any

import pandas as pd

from gelu_paper.experiments import EXPERIMENTS, LEARNING_RATE, Experiment, preset
from gelu_paper.labels import labels_of
from gelu_paper.published import OTHER_NUMBERS, published_curve, published_number
from gelu_paper.records import RunRecord
from gelu_paper.results import Choice, choices, curve_values
from lit_gelu.errors import ArgumentError

KINDS = ("results", "noise", "points")
LEGEND = (
    "runs: one a seed; min, max: over these runs; deviation: their standard deviation (n - 1 in the denominator); "
    "difference: median minus published. A run that diverged counts as worse than any other."
)
_CURVES = ("train_loss", "train_error", "val_loss", "test_loss", "test_error")
_SPREAD = ("min", "max", "deviation")
_COMMON = ("setting", "measured", "learning rate", "runs")  # what a brief table may say once
_HEADS = ("setting", "arm", "measured", "epoch", "learning rate", "runs", "median", *_SPREAD, "published", "difference")
_TEXTS = ("setting", "arm", "measured")  # columns that are aligned on the left
_SHARE_DECIMALS, _LOSS_DECIMALS = 2, 4


@dataclass(frozen=True)
class Table:
    """One experiment's numbers: errors as shares from 0 to 1, losses in the task's own unit."""

    experiment: Experiment
    frame: pd.DataFrame
    labels: tuple[str, ...]  # what must be said above it
    notes: tuple[str, ...]  # the selection's remarks, and where the published numbers are from

    def to_markdown(self, brief: bool = False) -> str:
        """Return title, labels, rows and notes.

        Args:
            brief: Leave out title, differences and empty columns, and say once what all rows have in common.

        Returns:
            The text.
        """
        experiment = self.experiment
        columns = [name for name in _HEADS if name != "epoch" or not self.frame["epoch"].isna().all()]
        rows = [{name: _cell(row, name) for name in columns} for row in self.frame.to_dict("records")]
        head = f"#### {experiment.name}: {experiment.title} ({experiment.place})"
        if brief:
            common = {name: rows[0][name] for name in _COMMON if len({row[name] for row in rows}) == 1}
            empty = {name for name in columns if all(row[name] == "-" for row in rows)}
            spread = _SPREAD if self.frame["runs"].max() == 1 else ()
            columns = [name for name in columns if name not in {*common, *empty, *spread, "difference"}]
            facts = [text if name in _TEXTS else f"{name} {text}" for name, text in common.items() if name not in empty]
            head = f"All rows: {'; '.join(facts)}." if facts else ""
        lines = [columns, ["---" if name in _TEXTS else "---:" for name in columns]]
        lines += [[row[name] for name in columns] for row in rows]
        parts = [
            head,
            *(f"**{label}**" for label in self.labels),
            "\n".join(f"| {' | '.join(line)} |" for line in lines),
            "\n".join(f"- {note}" for note in self.notes),
        ]
        return "\n\n".join(part for part in parts if part)


def tables(records: Sequence[RunRecord], only: Sequence[str] = (), kind: str = "results") -> list[Table]:
    """Return a table for each experiment of which there are runs.

    Args:
        records: The runs, of one preset.
        only: Names of experiments; empty means all.
        kind: ``"results"``: the median test error at the learning rate that the validation set chose. ``"noise"``:
            the same under noise on the inputs. ``"points"``: the median curves where points of the paper's figures
            were read.

    Returns:
        The tables, in the order of `EXPERIMENTS`.

    Raises:
        ArgumentError: If the runs are of two presets.
        DataError: If the runs of an experiment are of two protocols.
    """
    presets = {record.preset for record in records}
    if len(presets) > 1:
        raise ArgumentError(f"Runs of the presets {', '.join(sorted(presets))} given; a table shows one.")
    experiments = EXPERIMENTS | preset(presets.pop()) if presets else {}
    selection = []
    for name, experiment in experiments.items():
        chosen = choices(experiment, records) if not only or name in only else []
        rows = list(_rows(experiment, chosen, kind))
        if rows:
            selection.append(_table(experiment, [choice for choice, _ in rows], [row for _, row in rows]))
    return selection


def to_csv(selection: Iterable[Table]) -> str:
    """Return one line a row, numbers unrounded, errors as shares."""
    frames = [
        table.frame.drop(columns="printed").assign(experiment=table.experiment.name, labels="; ".join(table.labels))
        for table in selection
    ]
    return pd.concat(frames).to_csv(index=False, lineterminator="\n") if frames else ""


def rounded(value: float, decimals: int, signed: bool = False) -> str:
    """Return a number as text, rounded to the nearest; what lies in the middle is rounded up.

    Example:
        >>> rounded(0.125, 2), rounded(-0.125, 2), rounded(0.002, 2, signed=True), rounded(float("inf"), 2)
        ('0.13', '-0.12', '0.00', 'diverged')
    """
    if not math.isfinite(value):
        return "diverged"
    # repr: the decimal number that was meant, not the binary one just below it.
    exact = Decimal(repr(value))
    result = exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP if exact > 0 else ROUND_HALF_DOWN)
    text = str(abs(result)) if result == 0 else str(result)
    return f"+{text}" if signed and result > 0 else text


def _rows(experiment: Experiment, chosen: Sequence[Choice], kind: str) -> list[tuple[Choice, dict[str, Any]]]:
    if kind == "results":
        return [(choice, _result(experiment, choice)) for choice in chosen]
    if kind == "points":
        return [(choice, row) for choice in chosen for row in _points(experiment, choice)]
    if kind != "noise":
        raise ArgumentError(f"kind={kind!r} given; accepted: {', '.join(KINDS)}.")
    rows = []
    for level in sorted({level for choice in chosen for run in choice.runs for level in _integer_levels(run)}):
        for choice in chosen:
            values = [run.robustness.error[run.robustness.levels.index(level)] for run in choice.runs if run.robustness]
            if values:
                values += [math.inf] * choice.diverged
                rows.append((choice, _row(experiment, choice, f"test error under noise {level:g}", pd.Series(values))))
    return rows


def _integer_levels(run: RunRecord) -> list[float]:
    levels = () if run.robustness is None else run.robustness.levels
    return [level for level in levels if level and level == int(level)]


def _result(experiment: Experiment, choice: Choice) -> dict[str, Any]:
    """Return the row of an arm's reported number, beside the printed one or the end of the published curve."""
    if choice.test is None:  # a search for a learning rate
        return _row(experiment, choice, "validation error", choice.validation)
    row = _row(experiment, choice, experiment.metric.replace("_", " "), choice.test)
    tuned = set(experiment.tuned) > {LEARNING_RATE}
    if number := published_number(experiment.name, choice.arm, choice.setting, tuned=tuned):
        return row | _published(row, number.value, number.printed, number.source)
    curve = published_curve(experiment.name, choice.arm, experiment.metric, choice.setting, choice.learning_rate)
    ends = {run.curves[experiment.metric].epoch[-1] for run in choice.runs if run.status == "finished"}
    if curve is not None and experiment.selection == "last" and ends == {curve.points[-1][0]}:
        value = curve.points[-1][1]
        return row | _published(row, value, _as_drawn(value, experiment.metric), curve.source)
    return row


def _points(experiment: Experiment, choice: Choice) -> list[dict[str, Any]]:
    """Return a row for each published point that the runs have a measurement at."""
    rows = []
    for name in _CURVES:
        curve = published_curve(experiment.name, choice.arm, name, choice.setting, choice.learning_rate)
        for epoch, value in curve.points if curve is not None else ():
            values = curve_values(choice.runs, name, epoch)
            if curve is not None and values is not None:
                row = _row(experiment, choice, name.replace("_", " "), values) | {"epoch": epoch}
                rows.append(row | _published(row, value, _as_drawn(value, name), curve.source))
    return rows


def _row(experiment: Experiment, choice: Choice, measured: str, values: pd.Series | None) -> dict[str, Any]:
    """Return a row without a published number; what was not measured is NaN."""
    values = pd.Series(dtype=float) if values is None else values
    setting = [
        f"{name} {value:g}{' (chosen)' if name in experiment.tuned else ''}" for name, value in choice.setting.items()
    ]
    return {
        "setting": ", ".join(setting),
        "arm": choice.arm,
        "measured": measured,
        "epoch": math.nan,
        "learning rate": choice.learning_rate,
        "runs": len(choice.runs),
        "seeds": experiment.seeds,
        "diverged": choice.diverged,
        "median": float(values.median()),
        "min": float(values.min()),
        "max": float(values.max()),
        # Of one run, and where any is infinite, there is none.
        "deviation": float(values.std()) if values.max() < math.inf else math.nan,
        "published": math.nan,
        "printed": "",
        "difference": math.nan,
        "source": "",
    }


def _published(row: Mapping[str, Any], value: float, printed: str, source: str) -> dict[str, Any]:
    return {"published": value, "printed": printed, "difference": row["median"] - value, "source": source}


def _as_drawn(value: float, name: str) -> str:
    """Return a number that was read from a drawing, in per cent if it is a share."""
    return f"{100 * value:.6g}" if name.endswith("error") else f"{value:g}"


def _table(experiment: Experiment, chosen: Sequence[Choice], rows: Sequence[Mapping[str, Any]]) -> Table:
    arms: dict[str, dict[str, None]] = {}
    for choice in chosen:
        for remark in choice.remarks:
            arms.setdefault(remark, {})[choice.arm] = None
    notes = [f"{', '.join(names)}: {remark}" for remark, names in arms.items()]
    notes += dict.fromkeys(f"published: {row['source']}" for row in rows if row["source"])
    notes += [
        f"{number.source}: {number.printed} %, no arm of this table"
        for number in OTHER_NUMBERS
        if number.experiment == experiment.name
    ]
    labels = labels_of(run for choice in chosen for run in choice.runs)
    return Table(experiment, pd.DataFrame(rows), tuple(labels), tuple(notes))


def _cell(row: Mapping[Any, Any], name: str) -> str:
    """Return what a table shows of a row; a dash for what is not there."""
    value, is_share = row[name], "error" in row["measured"]
    if name == "measured":
        return f"{value}, %" if is_share else str(value)
    if name == "runs":
        of = f" of {row['seeds']}" if value < row["seeds"] else ""
        return f"{value}{of}" + (f", {row['diverged']} diverged" if row["diverged"] else "")
    if name == "published":
        return row["printed"] or "-"
    if name in _TEXTS:
        return value or "-"
    if math.isnan(value):
        return "-"
    if name in {"epoch", "learning rate"}:
        return f"{value:g}"
    # As many decimals as the published number has, at least. In decimal, because 100 times a binary share may pass over
    # the middle between two roundings.
    if is_share and math.isfinite(value):
        value = float(Decimal(repr(value)) * 100)
    decimals = max(_SHARE_DECIMALS if is_share else _LOSS_DECIMALS, len(row["printed"].partition(".")[2]))
    return rounded(value, decimals, signed=name == "difference")
