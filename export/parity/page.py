"""The report as a page of its own: tables and plots, nothing from elsewhere."""

from html import escape

from lit_gelu.export.parity.plots import plots
from lit_gelu.export.parity.report import ParityReport
from lit_gelu.export.parity.tables import TextTable, findings, tables

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ddd; padding: .2rem .6rem; text-align: left; }
th { position: sticky; top: 0; background: #fff; }
.scroll { overflow: auto; max-height: 40rem; }
.failed { color: #a30000; font-weight: 600; }
.ok { color: #17652c; font-weight: 600; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
figcaption, p.legend { color: #555; font-size: 13px; }
"""


def page(report: ParityReport) -> str:
    """Return a report as HTML.

    Args:
        report: The report.

    Returns:
        The text: styles and plots are inline, no address is named.
    """
    verdict, kind = ("passed", "ok") if report.passed else ("FAILED", "failed")
    title = f"Parity of {escape(report.path)}: {verdict}"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    about = f"{report.provider}, {report.dtype}, approximate={report.approximate}; {versions}"
    found = "".join(f"<li>{escape(line)}</li>" for line in findings(report))
    parts = [
        f'<h1>Parity of {escape(report.path)}: <span class="{kind}">{verdict}</span></h1>',
        f"<p>{escape(about)}</p>",
        f"<ul>{found}</ul>" if found else "",
        *(f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for caption, svg in plots(report)),
        *map(_table, tables(report)),
    ]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _table(table: TextTable) -> str:
    """Return one table."""
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.body)
    legend = f'<p class="legend">{escape(table.legend)}</p>' if table.legend else ""
    content = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<h2>{escape(table.title)}</h2>{legend}<div class="scroll"><table>{content}</table></div>'


def _cell(text: str) -> str:
    """Return one cell; what failed stands out."""
    kind = ' class="failed"' if text in {"FAILED", "fault"} else ""
    return f"<td{kind}>{escape(text)}</td>"
