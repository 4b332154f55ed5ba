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
        f"# Parity of {cell_text(report.path)}: {'passed' if report.passed else 'FAILED'}",
        "",
        f"{report.provider}, {report.dtype}, approximate={report.approximate}; "
        + ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items())),
    ]
    found = findings(report)
    if found:
        head += ["", *(f"- {cell_text(line)}" for line in found)]
    return "\n".join([*head, *(line for table in tables(report) for line in table_lines(table)), ""])


def table_lines(table: TextTable) -> list[str]:
    """Return one table as Markdown.

    Args:
        table: The table.

    Returns:
        Lines, its title among them.

    Example:
        >>> table_lines(TextTable("Sizes", ("file", "kB"), (("net.onnx", "3"),)))[-3:]
        ['| file | kB |', '| --- | --- |', '| net.onnx | 3 |']
    """
    rows = [table.head, ("---",) * len(table.head), *table.body]
    lines = ["| " + " | ".join(map(cell_text, row)) + " |" for row in rows]
    return ["", f"## {table.title}", "", *([table.legend, ""] if table.legend else []), *lines]


def cell_text(text: str) -> str:
    r"""Return text that cannot end a cell.

    Args:
        text: Any text.

    Returns:
        One line, with bars escaped.

    Example:
        >>> print(cell_text("a|b"))
        a\|b
    """
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
