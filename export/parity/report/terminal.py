"""The report for a terminal: one line for each family of inputs."""

from collections.abc import Mapping

from rich import box
from rich.table import Table

from lit_gelu.export.parity.activation_census import fate_counts
from lit_gelu.export.parity.report.parity_report import ParityReport
from lit_gelu.export.parity.report.tables import findings, verdict
from lit_gelu.export.parity.rows import ELEMENTWISE, VS_PYTORCH, VS_TRAINED, ParityRow


def table(report: ParityReport) -> Table:
    """Return a table with one line for each family of inputs, one for each gap and one for each operator alone."""
    # Of several outputs, the one that is nearest to its limit is shown.
    made = Table(
        title=f"{report.path}: {report.provider}, {report.dtype}, approximate={report.approximate}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    made.add_column("inputs", overflow="fold")
    for title in ("n", "max abs", "error", "own", "limit", "top-1", ""):
        made.add_column(title, justify="right" if title else "left", no_wrap=True)
    for label, row in _shown(report).items():
        top1 = "" if row.top1_agreement is None else f"{100 * row.top1_agreement:.4g} %"
        figures = (_short(value) for value in (row.max_abs_error, row.error, row.own, row.limit))
        made.add_row(label, str(row.count), *figures, top1, verdict(row))
    return made


def _shown(report: ParityReport) -> dict[str, ParityRow]:
    """Return the row of each line: the gating one, of several outputs the worst."""
    found: dict[str, ParityRow] = {}
    for row in report.rows:
        if row.comparison.startswith(VS_PYTORCH) and not row.gating:
            continue
        suffix = {VS_TRAINED: ": gap to the module as trained", ELEMENTWISE: " alone"}.get(row.comparison)
        if suffix is None:
            suffix = "" if row.gating else f": {row.comparison}"
        label = row.inputs + suffix
        if label not in found or (row.excess, row.error) > (found[label].excess, found[label].error):
            found[label] = row
    return found


def lines(report: ParityReport) -> list[str]:
    """Return what stands below the table."""
    said = [
        "max abs: largest difference between the file and PyTorch's float64; error: the same in units of the largest "
        "output (for an operator alone, of max(1, |y|))",
        f"own: the error of PyTorch's {report.dtype}; limit: {report.floor:.3g}, or twice own where that is larger",
    ]
    said += [f"{row.inputs}: {row.detail}" for row in report.rows if row.detail]
    said += [f"{row.inputs}, {row.output}: {row.index_text()}" for row in _worst_indices(report)]
    said += [
        f"{metric.name}: {metric.pytorch:.4g} with PyTorch, {metric.file:.4g} with the file"
        for metric in report.metrics
    ]
    if report.optimized_census:
        said.append(f"operators in the file: {_counts(report.census)}")
        said.append(f"after onnxruntime's optimisation: {_counts(report.optimized_census)}")
    if report.activations:
        fates = (f"{count} x {text}" for text, count in fate_counts(list(report.activations)).items())
        said.append(f"activations: {'; '.join(fates)}")
    said += [f"note: {line}" for line in findings(report)]
    return [*said, "passed" if report.passed else "FAILED"]


def _worst_indices(report: ParityReport) -> list[ParityRow]:
    """Return the row of each index that is beyond its limit, the one of the inputs that show it most."""
    found: dict[tuple[str, str], ParityRow] = {}
    for row in sorted(report.failures, key=lambda row: row.index_excess):
        if row.index_excess > 1:
            found[row.output, row.index] = row
    return list(found.values())


def _short(value: float | None) -> str:
    """Return a number for a table cell."""
    return "" if value is None else f"{value:.1e}"


def _counts(census: Mapping[str, int]) -> str:
    """Return counts as one line."""
    return ", ".join(f"{count} {name}" for name, count in sorted(census.items()))
