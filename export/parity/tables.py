"""A proof for people: as tables in Markdown, on a page, in a notebook and in a terminal."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from rich import box
from rich.console import Console
from rich.table import Table

from lit_gelu.display import HtmlTable
from lit_gelu.export.parity.report import (
    ELEMENTWISE,
    VS_PYTORCH,
    VS_TRAINED,
    ActivationFate,
    ParityReport,
    ParityRow,
)


@dataclass(frozen=True)
class TextTable:
    """A table of text."""

    title: str  # what it shows
    head: tuple[str, ...]  # names of the columns
    body: tuple[tuple[str, ...], ...]
    legend: str = ""  # what the columns mean


def figure(value: float | None) -> str:
    """Return a number for a cell."""
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.3g}"


def _verdict(row: ParityRow) -> str:
    return {True: "ok", False: "FAILED", None: "reported"}[row.passed]


def tables(report: ParityReport) -> list[TextTable]:
    """Return all tables of a report that have rows."""
    repeated = report.repeatability
    drawn = [
        _comparisons(report),
        TextTable(
            "Test metrics",
            ("metric", "PyTorch as trained", "file", "difference"),
            tuple((m.name, *map(figure, (m.pytorch, m.file, m.difference))) for m in report.metrics),
        ),
        TextTable(
            "Batch invariance",
            ("output", "rows alone", "of", "largest difference"),
            tuple(
                (part.output, str(part.rows), str(part.of), figure(part.difference))
                for part in (repeated.batches if repeated else ())
            ),
        ),
        TextTable(
            "Activations",
            ("site", "call", "in the file", "as onnxruntime runs it"),
            tuple(
                (f.site or "(the module itself)", str(f.call + 1), ", ".join(f.before), ", ".join(f.after))
                for f in report.activations
            ),
            "An activation that is computed by no value of the optimised graph has none.",
        ),
        TextTable(
            "Operators",
            ("operator", "in the file", "as onnxruntime runs it"),
            tuple(
                (name, str(report.census.get(name, 0)), str(report.optimized_census.get(name, 0)))
                for name in sorted({*report.census, *report.optimized_census})
                if report.optimized_census
            ),
        ),
    ]
    return [table for table in drawn if table.body]


def _comparisons(report: ParityReport) -> TextTable:
    head = ("comparison", "inputs", "output", "n", "error", "own", "limit", "max abs", "PyTorch max abs", "scale")
    body = tuple(
        (
            row.comparison,
            row.inputs,
            row.output,
            str(row.count),
            *map(figure, (row.error, row.own, row.limit, row.max_abs_error, row.spread, row.scale)),
            row.index_text(),
            _top1(row),
            _verdict(row),
            row.detail,
        )
        for row in report.rows
    )
    legend = (
        "error: largest difference in units of scale, the largest output of float64; own: PyTorch's in the file's "
        f"dtype; limit: the larger of {figure(report.floor)} and twice own. For an operator alone the unit is "
        "max(1, |y|). Worst index: the one nearest to its limit, which is of its own scale."
    )
    return TextTable("Comparisons", (*head, "worst index", "top-1", "verdict", "detail"), body, legend)


def _top1(row: ParityRow) -> str:
    if row.top1_agreement is None:
        return ""
    changes = f", {row.top1_changes} changed" if row.top1_changes else ""
    return f"{100 * row.top1_agreement:.4g} %{changes}"


def fate_counts(entries: Sequence[ActivationFate]) -> dict[str, int]:
    """Count the calls by what became of them."""
    return dict(Counter(map(str, entries)))


def findings(report: ParityReport) -> list[str]:
    """Return what a person should read first."""
    lines = [f"Fault: {fault}" for fault in report.faults]
    if report.culprit is not None:
        lines.append(f"Cause: {report.culprit}.")
    if report.divergence is not None:
        lines.append(f"Where: {report.divergence}.")
    repeated = report.repeatability
    if repeated is not None and not repeated.identical:
        lines.append("Two runs on the same input gave different outputs.")
    if repeated is not None and repeated.random_nodes:
        lines.append(f"Nodes that draw random numbers: {', '.join(repeated.random_nodes)}.")
    return [*lines, *report.notes]


def _about(report: ParityReport) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    return f"{report.provider}, {report.dtype}, approximate={report.approximate}; {versions}"


def markdown(report: ParityReport) -> str:
    """Return a report as Markdown."""
    text = [f"# Parity of {cell_text(report.path)}: {'passed' if report.passed else 'FAILED'}", "", _about(report)]
    if listed := [f"- {cell_text(line)}" for line in findings(report)]:
        text += ["", *listed]
    for table in tables(report):
        rows = (table.head, ("---",) * len(table.head), *table.body)
        text += ["", f"## {table.title}", "", *([table.legend, ""] if table.legend else [])]
        text += ["| " + " | ".join(map(cell_text, row)) + " |" for row in rows]
    return "\n".join([*text, ""])


def cell_text(text: str) -> str:
    r"""Return text that cannot end a cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def page(report: ParityReport) -> str:
    """Return a report as a page of its own, which needs nothing from elsewhere."""
    title = escape(f"Parity of {report.path}: {'passed' if report.passed else 'FAILED'}")
    shown = notebook(report)
    head = (
        f'<meta charset="utf-8"><title>{title}</title><style>body {{ font: 14px/1.5 system-ui; margin: 2rem }}</style>'
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body><h1>{title}</h1>\n{shown}\n</body></html>\n'


def notebook(report: ParityReport) -> str:
    """Return a report for a notebook: the verdict, the first table and what was found; the others unfold."""
    summary, lines = report.summary(), [_about(report), *findings(report)]
    drawn = tables(report)
    first, *others = [HtmlTable(one.head, one.body, one.title, [one.legend] * bool(one.legend)) for one in drawn]
    folded = "".join(f"<details><summary>{escape(one.title)}</summary>{one.render()}</details>" for one in others)
    listed = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"<p><b>{escape(summary)}</b></p>{first.render()}{listed}{folded}"


def plain_text(report: object) -> str:
    """Return what rich prints of a report as plain text of 120 columns; square brackets are no markup."""
    text = io.StringIO()
    Console(file=text, width=120, color_system=None, legacy_windows=False).print(report, markup=False)
    return text.getvalue().rstrip()


def terminal_table(report: ParityReport) -> Table:
    """Return one line for each family of inputs, one for each gap and one for each operator alone."""
    shown: dict[str, ParityRow] = {}  # of several outputs, the one that is nearest to its limit
    for row in report.rows:
        if row.comparison.startswith(VS_PYTORCH) and not row.gating:
            continue
        suffixes = {VS_TRAINED: ": gap to the module as trained", ELEMENTWISE: " alone"}
        label = row.inputs + suffixes.get(row.comparison, "")
        if label not in shown or (row.excess, row.error) > (shown[label].excess, shown[label].error):
            shown[label] = row
    table = Table(
        title=f"{report.path}: {report.provider}, {report.dtype}, approximate={report.approximate}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("inputs", overflow="fold")
    for title in ("n", "max abs", "error", "own", "limit", "top-1", ""):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for label, row in shown.items():
        top1 = "" if row.top1_agreement is None else f"{100 * row.top1_agreement:.4g} %"
        figures = (row.max_abs_error, row.error, row.own, row.limit)
        cells = ("" if value is None else f"{value:.1e}" for value in figures)
        table.add_row(label, str(row.count), *cells, top1, _verdict(row))
    return table


def terminal_lines(report: ParityReport) -> list[str]:
    """Return what stands below the table."""
    lines = [
        "max abs: largest difference between the file and PyTorch's float64; error: the same in units of the largest "
        "output (for an operator alone, of max(1, |y|))",
        f"own: the error of PyTorch's {report.dtype}; limit: {report.floor:.3g}, or twice own where that is larger",
    ]
    lines += [f"{row.inputs}: {row.detail}" for row in report.rows if row.detail]
    worst: dict[tuple[str, str], ParityRow] = {}  # of each index beyond its limit, the inputs that show it most
    for row in sorted(report.failures, key=lambda row: row.index_excess):
        if row.index_excess > 1:
            worst[row.output, row.index] = row
    lines += [f"{row.inputs}, {row.output}: {row.index_text()}" for row in worst.values()]
    lines += [f"{m.name}: {m.pytorch:.4g} with PyTorch, {m.file:.4g} with the file" for m in report.metrics]
    if report.optimized_census:
        lines.append(f"operators in the file: {_counts(report.census)}")
        lines.append(f"after onnxruntime's optimisation: {_counts(report.optimized_census)}")
    if report.activations:
        fates = (f"{count} x {text}" for text, count in fate_counts(report.activations).items())
        lines.append(f"activations: {'; '.join(fates)}")
    lines += [f"note: {line}" for line in findings(report)]
    return [*lines, "passed" if report.passed else "FAILED"]


def _counts(census: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(census.items()))
