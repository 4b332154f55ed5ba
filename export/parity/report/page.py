"""The report as a page of its own: tables and plots, nothing from elsewhere."""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from lit_gelu.export.parity.alone.elementwise import ElementwiseCheck
from lit_gelu.export.parity.alone.function_error import EDGES as POSITIONS
from lit_gelu.export.parity.causes.divergence import LayerError
from lit_gelu.export.parity.report.parity_report import ParityReport
from lit_gelu.export.parity.report.tables import TextTable, findings, tables, version_text
from lit_gelu.export.parity.rows import ELEMENTWISE, ParityRow
from lit_gelu.export.parity.ulp import EDGES
from lit_gelu.extras import MissingExtraError, need

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
    """Return a report as HTML."""
    verdict, kind = ("passed", "ok") if report.passed else ("FAILED", "failed")
    title = f"Parity of {escape(report.path)}: {verdict}"
    about = f"{report.provider}, {report.dtype}, approximate={report.approximate}; {version_text(report.versions)}"
    found = "".join(f"<li>{escape(line)}</li>" for line in findings(report))
    parts = [
        f'<h1>Parity of {escape(report.path)}: <span class="{kind}">{verdict}</span></h1>',
        f"<p>{escape(about)}</p>",
        f"<ul>{found}</ul>" if found else "",
        *_figures(report),
        *map(_table, tables(report)),
    ]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _figures(report: ParityReport) -> list[str]:
    """Return the plots; without matplotlib a sentence in their place, which is said as a warning too."""
    try:
        return [f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for caption, svg in plots(report)]
    except MissingExtraError as error:
        warnings.warn(f"The page of {report.path} has tables alone. {error}", stacklevel=2)
        return [f"<p>{escape(str(error))}</p>"]


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


if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"file": "#0b62a4", "PyTorch": "#c2571a", "limit": "#555555"}
Draw = Callable[["Axes"], None]
_LOWEST = 1e-12  # a logarithmic axis has no zero: errors below are drawn here


def plots(report: ParityReport) -> list[tuple[str, str]]:
    """Draw what a report has figures for."""
    rows = _worst_of_families(report)
    drawn: list[tuple[str, Draw, float]] = [
        ("Error by family of inputs, in units of the largest output", partial(_families, rows), 1.2 + 0.3 * len(rows))
    ]
    if report.layers:
        caption = "Error of each activation's output, layer by layer"
        drawn.append((caption, partial(_layers, report.layers), 3.5))
    for check in report.elementwise:
        drawn += [
            (f"{check.label}: error over x (0 is drawn at {_LOWEST:g})", partial(_profile, check), 3.5),
            (f"{check.label}: errors in units of the last place", partial(_histogram, check), 3.0),
        ]
    return [(caption, _svg(draw, height, f"p{i}-")) for i, (caption, draw, height) in enumerate(drawn)]


def _positive(values: Sequence[float | None]) -> list[float]:
    """Return values for a logarithmic axis; what is not finite or not there is not drawn."""
    return [float("nan") if v is None or not np.isfinite(v) else max(v, _LOWEST) for v in values]


def _worst_of_families(report: ParityReport) -> list[ParityRow]:
    """Return the gating row of the worst output of each family, the last one first."""
    worst: dict[str, ParityRow] = {}
    for row in report.rows:
        if (
            row.gating
            and row.comparison != ELEMENTWISE
            and row.excess >= (worst[row.inputs].excess if row.inputs in worst else -1)
        ):
            worst[row.inputs] = row
    return list(worst.values())[::-1]


def _families(rows: Sequence[ParityRow], axes: "Axes") -> None:
    """Draw error, own error and limit of some rows."""
    places = range(len(rows))
    axes.plot(_positive([r.limit for r in rows]), places, "|", color=_COLOURS["limit"], markersize=12, label="limit")
    axes.plot(_positive([r.own for r in rows]), places, "o", color=_COLOURS["PyTorch"], label="PyTorch")
    axes.plot(_positive([r.error for r in rows]), places, "D", color=_COLOURS["file"], label="file", markersize=5)
    axes.set_yticks(list(places), [row.inputs for row in rows])
    axes.set_xscale("log")
    axes.set_xlabel("max |y - y64| / max |y64|")
    axes.legend()


def _layers(layers: Sequence[LayerError], axes: "Axes") -> None:
    """Draw error, own error and limit over the layers."""
    places = range(1, len(layers) + 1)
    for name, values in (
        ("limit", [layer.limit for layer in layers]),
        ("PyTorch", [layer.own for layer in layers]),
        ("file", [layer.error for layer in layers]),
    ):
        style = "--" if name == "limit" else "o-"
        axes.plot(places, _positive(values), style, color=_COLOURS[name], label=name, markersize=4)
    axes.set_yscale("log")
    axes.set_xlabel("activation, in the order of the graph")
    axes.legend()


def _profile(check: ElementwiseCheck, axes: "Axes") -> None:
    """Draw the largest absolute error near each x."""
    centres = (POSITIONS[1:] + POSITIONS[:-1]) / 2
    for name, function in (("PyTorch", check.pytorch), ("file", check.file)):
        axes.plot(centres, _positive(function.profile), color=_COLOURS[name], label=name, drawstyle="steps-mid")
    axes.set_yscale("log")
    axes.set_xlabel("x")
    axes.set_ylabel("largest |y - y64|")
    axes.legend()


def _histogram(check: ElementwiseCheck, axes: "Axes") -> None:
    """Draw the shares of values by their error in units of the last place."""
    labels = [*(f"<= {edge:g}" for edge in EDGES), f"> {EDGES[-1]:g}"]
    for shift, name, function in ((-0.2, "PyTorch", check.pytorch), (0.2, "file", check.file)):
        shares = 100 * np.array(function.ulp.counts) / max(1, sum(function.ulp.counts))
        axes.bar(np.arange(len(labels)) + shift, shares, 0.4, color=_COLOURS[name], label=name)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_ylabel("% of values")
    axes.legend()


def _svg(draw: Draw, height: float, prefix: str) -> str:
    """Draw one plot and return its SVG element, without what names addresses or could clash with another plot."""
    need("matplotlib", extra="plots", what="Drawing the plots of a proof")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix, "font.family": "sans-serif"}):
        figure = Figure(figsize=(8.0, height), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.grid(visible=True, alpha=0.3)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # HTML knows the namespace of an inline <svg> by itself
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'xlink:href="#', f'href="#{prefix}', svg)
    return re.sub(r"url\(#", f"url(#{prefix}", svg)
