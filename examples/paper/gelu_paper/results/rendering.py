"""The protocol's tables as text, Markdown and CSV.

Numbers are rounded to the nearest, ties upwards: never in favour of what was measured, since all of it is better when
smaller. Differences are taken before rounding. CSV has every number as it was computed.
"""

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal
from typing import Literal, get_args

from gelu_paper.errors import PaperArgumentError
from gelu_paper.protocol.published import NUMBERS_BESIDE
from gelu_paper.results.medians import Summary
from gelu_paper.results.rows import Row

Format = Literal["text", "markdown", "csv"]
DIVERGED = "diverged"
NOTHING = "-"
_SHARE_DECIMALS, _LOSS_DECIMALS = 2, 4
_LEGEND = (
    "runs: one a seed; min, max: over these runs; deviation: their standard deviation (n - 1 in the denominator); "
    "difference: median minus published. A run that diverged counts as worse than any other."
)


def render(rows: Sequence[Row], form: Format = "text") -> str:
    """Return a table."""
    renderers: Mapping[str, Callable[[Sequence[Row]], str]] = {"text": _text, "markdown": _markdown, "csv": _csv}
    if form not in renderers:
        raise PaperArgumentError(f"No form {form!r}. Accepted: {', '.join(get_args(Format))}.")
    return renderers[form](rows)


def rounded(value: float, decimals: int, signed: bool = False) -> str:
    """Return a number as text, rounded to the nearest; what lies in the middle is rounded up."""
    if not math.isfinite(value):
        return DIVERGED
    # repr: the decimal number that was meant, not the binary one just below it.
    exact = Decimal(repr(value))
    result = exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP if exact > 0 else ROUND_HALF_DOWN)
    text = str(abs(result)) if result == 0 else str(result)
    return f"+{text}" if signed and result > 0 else text


def _text(rows: Sequence[Row]) -> str:
    """Return one aligned table for each experiment."""
    blocks = []
    for group in _by_experiment(rows):
        header, cells = _cells(group)
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        lines = [
            "  "
            + "  ".join(
                _aligned(cell, width, place) for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in (header, *cells)
        ]
        notes = [f"  {note}" for note in _notes(group)]
        blocks.append("\n".join([_title(group), *_warnings(group, "  {}"), *lines, *notes]))
    return "\n\n".join([*blocks, _LEGEND]) + "\n"


def _markdown(rows: Sequence[Row]) -> str:
    """Return one Markdown table for each experiment."""
    blocks = []
    for group in _by_experiment(rows):
        header, cells = _cells(group)
        rule = ["---" if place < _LEFT_COLUMNS else "---:" for place in range(len(header))]
        lines = [f"| {' | '.join(line)} |" for line in (header, rule, *cells)]
        parts = [f"### {_title(group)}", *_warnings(group, "**{}**"), "\n".join(lines)]
        notes = "\n".join(f"- {note}" for note in _notes(group))
        blocks.append("\n\n".join([*parts, *([notes] if notes else [])]))
    return "\n\n".join([*blocks, _LEGEND]) + "\n"


_CSV_COLUMNS: Mapping[str, Callable[[Row], object]] = {
    "protocol": lambda row: "; ".join(row.labels) or "the paper's",
    "preset": lambda row: row.preset,
    "experiment": lambda row: row.experiment.name,
    "setting": lambda row: " ".join(f"{name}={value:g}" for name, value in row.candidate.setting.items()),
    "arm": lambda row: row.arm,
    "learning_rate": lambda row: row.candidate.learning_rate,
    "quantity": lambda row: row.quantity,
    "epoch": lambda row: row.epoch,
    "unit": lambda row: "share" if row.is_share else "loss",
    "median": lambda row: row.summary and row.summary.median,
    "min": lambda row: row.summary and row.summary.low,
    "max": lambda row: row.summary and row.summary.high,
    "standard_deviation": lambda row: row.summary and row.summary.standard_deviation,
    "runs": lambda row: len(row.candidate.runs),
    "diverged": lambda row: row.candidate.diverged,
    "in_groups": lambda row: sum(run.group is not None for run in row.candidate.runs),
    "seeds_of_the_protocol": lambda row: row.experiment.seeds,
    "published": lambda row: row.published,
    "difference": lambda row: row.difference,
    "source": lambda row: row.source,
    "remarks": lambda row: "; ".join(row.remarks),
}


def _csv(rows: Sequence[Row]) -> str:
    """Return one line a row, numbers unrounded, errors as shares."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    writer.writerows(
        ["" if (value := column(row)) is None else value for column in _CSV_COLUMNS.values()] for row in rows
    )
    return target.getvalue()


_LEFT_COLUMNS = 3  # texts; the rest are numbers, aligned on the right


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of an experiment's table."""
    columns: dict[str, Callable[[Row], str]] = {
        "setting": lambda row: row.setting or NOTHING,
        "arm": lambda row: row.arm,
        "measured": lambda row: row.quantity + (", %" if row.is_share else ""),
    }
    if any(row.epoch is not None for row in rows):
        columns |= {"epoch": lambda row: NOTHING if row.epoch is None else f"{row.epoch:g}"}
    columns |= {
        "learning rate": lambda row: f"{row.candidate.learning_rate:g}",
        "runs": _runs,
        "median": lambda row: _number(row, lambda summary: summary.median),
        "min": lambda row: _number(row, lambda summary: summary.low),
        "max": lambda row: _number(row, lambda summary: summary.high),
        "deviation": lambda row: _number(row, lambda summary: summary.standard_deviation),
        "published": lambda row: row.printed or NOTHING,
        "difference": lambda row: NOTHING if row.difference is None else _scaled(row, row.difference, signed=True),
    }
    return list(columns), [[column(row) for column in columns.values()] for row in rows]


def _number(row: Row, part: Callable[[Summary], float | None]) -> str:
    value = None if row.summary is None else part(row.summary)
    return NOTHING if value is None else _scaled(row, value)


def _scaled(row: Row, value: float, signed: bool = False) -> str:
    """Return a share in per cent, or a loss, with as many decimals as the published number at least."""
    published = len((row.printed or "").partition(".")[2])
    if not row.is_share:
        return rounded(value, max(_LOSS_DECIMALS, published), signed)
    # In decimal, because 100 times a binary share may pass over the middle between two roundings.
    per_cent = float(Decimal(repr(value)) * 100) if math.isfinite(value) else value
    return rounded(per_cent, max(_SHARE_DECIMALS, published), signed)


def _runs(row: Row) -> str:
    """Return how many runs there are, of how many, and how many diverged."""
    runs, diverged = len(row.candidate.runs), row.candidate.diverged
    expected = f" of {row.experiment.seeds}" if runs < row.experiment.seeds else ""
    return f"{runs}{expected}" + (f", {diverged} diverged" if diverged else "")


def _title(rows: Sequence[Row]) -> str:
    experiment = rows[0].experiment
    return f"{experiment.name}: {experiment.title} ({experiment.place})"


def _warnings(rows: Sequence[Row], form: str) -> list[str]:
    """Return what must be said above a table."""
    return [form.format(text) for text in dict.fromkeys(label for row in rows for label in row.labels)]


def _notes(rows: Sequence[Row]) -> list[str]:
    """Return the selection's remarks and the published numbers' sources."""
    arms: dict[str, dict[str, None]] = {}
    for remark, arm in ((remark, row.arm) for row in rows for remark in row.remarks):
        arms.setdefault(remark, {})[arm] = None
    remarks = [f"{', '.join(names)}: {remark}" for remark, names in arms.items()]
    sources = [f"published: {row.source}" for row in rows if row.source]
    beside = [
        f"{number.source}: {number.printed} %, no arm of this table"
        for number in NUMBERS_BESIDE
        if number.experiment == rows[0].experiment.name
    ]
    return list(dict.fromkeys([*remarks, *_together(rows), *sources, *beside]))


def _together(rows: Sequence[Row]) -> list[str]:
    """Say how many of the runs were made in groups."""
    runs = {run.key: run for row in rows for run in row.candidate.runs}
    together = sum(run.group is not None for run in runs.values())
    return [f"made in groups of replicas: {together} of {len(runs)} runs"] if together else []


def _by_experiment(rows: Iterable[Row]) -> list[list[Row]]:
    return [list(group) for _, group in itertools.groupby(rows, key=lambda row: (row.preset, row.experiment.name))]


def _aligned(cell: str, width: int, place: int) -> str:
    return cell.ljust(width) if place < _LEFT_COLUMNS else cell.rjust(width)
