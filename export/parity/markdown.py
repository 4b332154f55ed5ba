"""The report as Markdown."""

from lit_gelu.export.parity.report import ParityReport
from lit_gelu.export.parity.tables import TextTable, findings, tables


def markdown(report: ParityReport) -> str:
    """Return a report as Markdown.

    Args:
        report: The report.

    Returns:
        The text.
    """
    head = [
        f"# Parity of {_cell(report.path)}: {'passed' if report.passed else 'FAILED'}",
        "",
        f"{report.provider}, {report.dtype}, approximate={report.approximate}; "
        + ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items())),
    ]
    found = findings(report)
    if found:
        head += ["", *(f"- {_cell(line)}" for line in found)]
    return "\n".join([*head, *(line for table in tables(report) for line in _table(table)), ""])


def _table(table: TextTable) -> list[str]:
    """Return one table."""
    rows = [table.head, ("---",) * len(table.head), *table.body]
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return ["", f"## {table.title}", "", *([table.legend, ""] if table.legend else []), *lines]


def _cell(text: str) -> str:
    """Return text that cannot end a cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
