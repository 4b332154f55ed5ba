"""The report as tables of text: what Markdown, the page and the terminal show."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from rich.console import Console

from lit_gelu.display import HtmlTable
from lit_gelu.export.parity.alone.elementwise import OK
from lit_gelu.export.parity.report.parity_report import ParityReport
from lit_gelu.export.parity.rows import ParityRow
from lit_gelu.export.parity.task_metrics import TaskMetric
from lit_gelu.export.parity.ulp import EDGES


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


def verdict(row: ParityRow) -> str:
    """Return a row's verdict."""
    return {True: "ok", False: "FAILED", None: "reported"}[row.passed]


def tables(report: ParityReport) -> list[TextTable]:
    """Return all tables of a report that have rows."""
    made = [
        _comparisons(report),
        metrics_table(report.metrics, "as trained"),
        *(make(report) for make in (_elementwise, _histograms, _tails, _special, _layers, _batches, _fates)),
    ]
    if report.optimized_census:
        made.append(operators_table(report.census, report.optimized_census))
    return [table for table in made if table.body]


def _comparisons(report: ParityReport) -> TextTable:
    """Every row."""
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
            verdict(row),
        )
        for row in report.rows
    )
    legend = (
        "error: largest difference in units of scale, the largest output of float64; own: PyTorch's in the file's "
        f"dtype; limit: the larger of {figure(report.floor)} and twice own. For an operator alone the unit is "
        "max(1, |y|). Worst index: the one nearest to its limit, which is of its own scale."
    )
    return TextTable("Comparisons", (*head, "worst index", "top-1", "verdict"), body, legend)


def _top1(row: ParityRow) -> str:
    """Return the top-1 agreement, and the changes."""
    if row.top1_agreement is None:
        return ""
    changes = f", {row.top1_changes} changed, {row.top1_flips} beyond rounding" if row.top1_changes else ""
    return f"{100 * row.top1_agreement:.4g} %{changes}"


def metrics_table(metrics: Iterable[TaskMetric], pytorch: str) -> TextTable:
    """Return the module's own test metrics; ``pytorch`` says as what the module was measured."""
    body = tuple((m.name, *map(figure, (m.pytorch, m.file, m.difference))) for m in metrics)
    return TextTable("Test metrics", ("metric", f"PyTorch {pytorch}", "file", "difference"), body)


def _elementwise(report: ParityReport) -> TextTable:
    """Each activation alone."""
    head = ("activation", "nodes", "dtype", "values", "error", "PyTorch's", "limit", "at x", "max abs, |x| <= 6")
    body = tuple(
        (
            check.label,
            " ".join(check.operators),
            check.dtype,
            f"all {check.count}" if check.exhaustive else str(check.count),
            *map(figure, (check.file.error, check.pytorch.error, check.limit, check.file.at, check.file.max_abs_near)),
            *map(figure, (check.pytorch.max_abs_near, check.file.ulp_near_one, check.pytorch.ulp_near_one)),
        )
        for check in report.elementwise
    )
    more = ("PyTorch's max abs", "max ULP, |x| <= 1", "PyTorch's max ULP")
    return TextTable("Each activation alone", (*head, *more), body, "error: in units of max(1, |y|).")


def _histograms(report: ParityReport) -> TextTable:
    """Errors in units of the last place."""
    head = ("activation", "by", *(f"<= {edge:g}" for edge in EDGES), f"> {EDGES[-1]:g}", "not finite", "largest")
    body = tuple(
        (check.label, by, *map(str, ulp.counts), str(ulp.nonfinite), figure(ulp.largest))
        for check in report.elementwise
        for by, ulp in (("file", check.file.ulp), ("PyTorch", check.pytorch.ulp))
    )
    legend = "How many values are off by how many units in the last place; up to 0.5 is correctly rounded."
    return TextTable("Errors in units of the last place", head, body, legend)


def _tails(report: ParityReport) -> TextTable:
    """Where the tails end."""
    body = tuple(
        (check.label, side, *map(figure, (file.flush, own.flush, file.inaccurate, own.inaccurate)))
        for check in report.elementwise
        for side, file, own in (
            ("x < 0", check.file.negative, check.pytorch.negative),
            ("x > 0", check.file.positive, check.pytorch.positive),
        )
        if (file.flush, own.flush, file.inaccurate, own.inaccurate) != (None,) * 4
    )
    head = ("activation", "side", "0 from |x|", "PyTorch", "error > 0.1 % from |x|", "PyTorch")
    return TextTable("Tails", head, body, "Empty: never.")


def _special(report: ParityReport) -> TextTable:
    """Infinities, NaN and subnormal numbers that do not come out as the definition says."""
    body = tuple(
        (check.label, value.name, *map(figure, (value.file, value.pytorch, value.expected)), value.verdict)
        for check in report.elementwise
        for value in check.special
        if value.verdict != OK
    )
    legend = "A finding does not decide; a fault (a NaN that does not stay NaN) does."
    return TextTable("Special values", ("activation", "x", "file", "PyTorch", "definition", ""), body, legend)


def _layers(report: ParityReport) -> TextTable:
    """Errors layer by layer."""
    body = tuple(
        (_name(layer.site), str(layer.call + 1), *map(figure, (layer.error, layer.own, layer.limit)))
        for layer in report.layers
    )
    return TextTable("Layer by layer", ("activation", "call", "error", "own", "limit"), body)


def _name(site: str) -> str:
    """Return a site's name; that of a module which is one activation is empty."""
    return site or "(the module itself)"


def _batches(report: ParityReport) -> TextTable:
    """How much a row depends on its batch."""
    parts = report.repeatability.batches if report.repeatability else ()
    body = tuple((part.output, str(part.rows), str(part.of), figure(part.difference)) for part in parts)
    return TextTable("Batch invariance", ("output", "rows alone", "of", "largest difference"), body)


def _fates(report: ParityReport) -> TextTable:
    """What onnxruntime made of each activation."""
    body = tuple(
        (_name(fate.site), str(fate.call + 1), ", ".join(fate.before), ", ".join(fate.after), fate.provider)
        for fate in report.activations
    )
    legend = "An activation that is computed by no value of the optimised graph has none."
    return TextTable("Activations", ("site", "call", "in the file", "as onnxruntime runs it", "provider"), body, legend)


def operators_table(census: Mapping[str, int], optimized: Mapping[str, int]) -> TextTable:
    """Return how often each operator is there, before and after onnxruntime's optimisation."""
    body = tuple(
        (name, str(census.get(name, 0)), str(optimized.get(name, 0))) for name in sorted({*census, *optimized})
    )
    return TextTable("Operators", ("operator", "in the file", "as onnxruntime runs it"), body)


def findings(report: ParityReport) -> list[str]:
    """Return what a person should read first."""
    found = [f"Fault: {fault}" for fault in report.faults]
    if report.culprit is not None:
        found.append(f"Cause: {report.culprit}.")
    if report.divergence is not None:
        found.append(f"Where: {report.divergence}.")
    repeated = report.repeatability
    if repeated is not None and not repeated.identical:
        found.append("Two runs on the same input gave different outputs.")
    if repeated is not None and repeated.random_nodes:
        found.append(f"Nodes that draw random numbers: {', '.join(repeated.random_nodes)}.")
    return [*found, *report.notes]


def markdown(report: ParityReport) -> str:
    """Return a report as Markdown."""
    about = f"{report.provider}, {report.dtype}, approximate={report.approximate}; {version_text(report.versions)}"
    title = f"Parity of {cell_text(report.path)}: {'passed' if report.passed else 'FAILED'}"
    return markdown_text(title, about, findings(report), tables(report))


def markdown_text(title: str, about: str, found: Iterable[str], made: Iterable[TextTable]) -> str:
    """Return title, first line, findings and tables as Markdown."""
    listed = [f"- {cell_text(line)}" for line in found]
    head = [f"# {title}", "", about, *(["", *listed] if listed else [])]
    return "\n".join([*head, *(line for table in made for line in table_lines(table)), ""])


def html_of(summary: str, made: Sequence[TextTable], found: Sequence[str]) -> str:
    """Return a report for a notebook: the verdict, the first table and what was found; the others unfold."""
    first, *others = [HtmlTable(one.head, one.body, one.title, [one.legend] * bool(one.legend)) for one in made]
    folded = "".join(f"<details><summary>{escape(one.title)}</summary>{one.render()}</details>" for one in others)
    said = "".join(f"<p>{escape(line)}</p>" for line in found)
    return f"<p><b>{escape(summary)}</b></p>{first.render()}{said}{folded}"


def version_text(versions: Mapping[str, str]) -> str:
    """Return names and versions as one line."""
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def plain_text(report: object) -> str:
    """Return what rich prints of a report as plain text of 120 columns; square brackets are no markup."""
    text = io.StringIO()
    Console(file=text, width=120, color_system=None, legacy_windows=False).print(report, markup=False)
    return text.getvalue().rstrip()


def table_lines(table: TextTable) -> list[str]:
    """Return one table as Markdown."""
    rows = [table.head, ("---",) * len(table.head), *table.body]
    lines = ["| " + " | ".join(map(cell_text, row)) + " |" for row in rows]
    return ["", f"## {table.title}", "", *([table.legend, ""] if table.legend else []), *lines]


def cell_text(text: str) -> str:
    r"""Return text that cannot end a cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
