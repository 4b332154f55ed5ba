"""`page`: a run as one HTML file that a person reads and a machine, too."""

import math
from collections.abc import Iterable, Mapping, Sequence

from lit_gelu.report.activation_findings import grouped
from lit_gelu.report.chart_groups import chart_sections
from lit_gelu.report.content import ExportedFile, ReportedRun, RunFinding
from lit_gelu.report.page_style import STYLE
from lit_gelu.report.plain_data import OPENING, to_json
from lit_gelu.report.safe_text import attribute, text

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # the page asks nobody for anything
_WORDS = {"alarm": "Alarm", "warning": "Warning", "note": "Note", "good": "Good"}
_STATUS = {
    "finished": "finished",
    "failed": "failed",
    "interrupted": "interrupted",
    "unknown": "not recorded",
}
_PROOFS = {"passed": "passed", "failed": "FAILED", "none": "not compared", "unreadable": "unreadable"}


def page(run: ReportedRun) -> str:
    """Return a run as a page of its own: nothing in it comes from elsewhere, and no script runs.

    What comes from files (names, values, errors) is text in it. The same content is in it as JSON, for
    `lit_gelu.report.read_report`.

    Args:
        run: What to say; `lit_gelu.report.judged` adds the findings.

    Returns:
        HTML in UTF-8.

    Example:
        >>> made = page(ReportedRun(title="<b>", source="runs/0", made="2026-01-01T00:00:00Z"))
        >>> "<h1>&lt;b&gt;</h1>" in made, "<script>" in made
        (True, False)
    """
    sections = [section for section in _sections(run) if section[2]]
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in sections)
    body = "".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>{content}</section>'
        for name, title, content in sections
    )
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{attribute(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(run.title)}: report of a run</title><style>{STYLE}</style>"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n<header><h1>{text(run.title)}</h1>'
        f'<p class="soft">Report of a run, made {text(_when(run.made))} from {text(run.source)}.</p>{_facts(run)}'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n<main>{body}</main>\n'
        "<footer><p>Written by lit-gelu. The numbers of this page are in it as JSON: "
        "<code>lit_gelu.report.read_report(path)</code>.</p></footer>\n"
        f"{OPENING}{to_json(run)}</script>\n</body></html>\n"
    )


def _sections(run: ReportedRun) -> list[tuple[str, str, str]]:
    """Return the parts of a page: a name, a title and their HTML, empty where there is nothing to say."""
    return [
        ("findings", "Findings", _findings(run)),
        *chart_sections(run),
        ("activations", "Activations and swaps", _activations(run)),
        ("files", "Exported files", _files(run.files)),
        ("configuration", "Configuration", _configuration(run.configuration)),
        ("environment", "Environment", _environment(run)),
        ("missing", "What is missing", _list(run.missing)),
    ]


def _facts(run: ReportedRun) -> str:
    """Return the few figures that everybody asks for first."""
    facts = {"Status": _STATUS[run.status]}
    if run.steps is not None:
        facts["Optimizer steps"] = f"{run.steps:,}"
    if run.epochs is not None:
        facts["Epochs"] = f"{run.epochs:,}"
    if run.seconds is not None:
        facts["Time"] = _duration(run.seconds)
    for name in ("val_loss", "val_error", "test_loss", "test_error"):
        curve = run.curve(name)
        if curve is not None and curve.values:
            facts[f"{name}, last"] = f"{curve.values[-1]:.4g}"
    rows = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items())
    failure = f'<div class="finding alarm"><span class="level">Error:</span> {text(run.failure)}</div>'
    return f'<dl class="facts">{rows}</dl>{failure if run.failure else ""}'


def _when(made: str) -> str:
    """Return ISO 8601 as a person reads it."""
    return made.replace("T", " ", 1).replace("+00:00", " UTC")


def _duration(seconds: float) -> str:
    """Return a time in the units that a person would choose."""
    if not math.isfinite(seconds) or seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _findings(run: ReportedRun) -> str:
    """Return the findings, those of one kind together."""
    if not run.findings:
        return '<p class="soft">There is nothing to judge: no figures were found.</p>'
    return "".join(_finding(each) for each in grouped(run.findings).values())


def _finding(group: Sequence[RunFinding]) -> str:
    """Return findings of one kind: each with its place, their advice and source once."""
    first = group[0]
    head = f'<h3><span class="level">{_WORDS[first.level]}:</span> {text(first.topic)}</h3>'
    lines = [f"<strong>{text(f.where)}</strong>: {text(f.text)}" if f.where else text(f.text) for f in group]
    body = f"<p>{lines[0]}</p>" if len(lines) == 1 else _items(lines)
    advice = "".join(
        f"<p>What to do: {text(words)}</p>" for words in dict.fromkeys(f.advice for f in group if f.advice)
    )
    sources = ", ".join(dict.fromkeys(f.source for f in group if f.source))
    source = f'<p class="soft">Rule: {text(sources)}</p>' if sources else ""
    return f'<div class="finding {first.level}">{head}{body}{advice}{source}</div>'


def _items(lines: Sequence[str], most: int = 8) -> str:
    """Return lines as a list, those beyond the first few folded away."""
    shown = "".join(f"<li>{line}</li>" for line in lines[:most])
    rest = "".join(f"<li>{line}</li>" for line in lines[most:])
    more = f"<details><summary>{len(lines) - most} more</summary><ul>{rest}</ul></details>" if rest else ""
    return f"<ul>{shown}</ul>{more}"


def _activations(run: ReportedRun) -> str:
    """Return the time line of swaps, and the table of sites."""
    events = []
    for swap in run.swaps:
        epoch = "" if swap.epoch is None else f", epoch {swap.epoch}"
        gradual = " (still giving way when the run ended)" if swap.annealing else ""
        places: dict[tuple[str, str], list[str]] = {}
        for change in swap.changes:
            places.setdefault((change.old, change.new), []).append(_site(change.site))
        changes = "".join(
            f"<li>{text(old)} → {text(new)} at <code>{text(', '.join(sites))}</code></li>"
            for (old, new), sites in places.items()
        )
        events.append(f"<li><strong>Step {swap.step}{epoch}</strong>{gradual}<ul>{changes}</ul></li>")
    line = f'<ol class="timeline">{"".join(events)}</ol>' if events else ""
    rows = [
        (site.name or "(the model)", site.at_start or "not recorded", site.at_end or "not recorded")
        for site in run.sites
    ]
    sites = _table(("Site", "At the start", "At the end"), rows, "Activations of the model")
    none = '<p class="soft">No swap was made.</p>' if rows and not events else ""
    return line + none + sites


def _site(name: str) -> str:
    """Return a site's name; that of a module which is one activation is empty."""
    return name or "(the model)"


def _files(files: Iterable[ExportedFile]) -> str:
    """Return the table of exported files."""
    rows = [
        (
            file.name,
            f"{file.size:,}",
            str(file.opset or ""),
            ", ".join(part for part in (file.dtype, file.approximate, file.target) if part),
            ", ".join(f"{count} {spec}" if count != 1 else spec for spec, count in file.activations.items()),
            _PROOFS[file.proof] + (f": {file.trouble}" if file.trouble else ""),
            "" if file.largest_error is None else f"{file.largest_error:.2e}",
            file.provider,
            file.report + (" (of another file)" if file.report_fits is False else ""),
        )
        for file in files
    ]
    heads = (
        "File",
        "Bytes",
        "Opset",
        "Written as",
        "Activations",
        "Proof",
        "Largest error",
        "Run by",
        "Whole comparison",
    )
    return _table(heads, rows, "Exported files")


def _configuration(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Return a table for each group, folded if it is long."""
    parts = []
    for name, values in groups.items():
        if values:
            table = _table(("Name", "Value"), list(values.items()), f"Configuration: {name}")
            open_ = " open" if len(values) <= 20 else ""
            parts.append(f"<details{open_}><summary>{text(name)}: {len(values)} values</summary>{table}</details>")
    return "".join(parts)


def _environment(run: ReportedRun) -> str:
    """Return the table of versions and machine."""
    if not run.environment:
        return ""
    said = "Where the run was made." if run.environment_of == "run" else (
        "Where this page was made, which need not be where the run was."
    )  # fmt: skip
    return f"<p>{said}</p>" + _table(("What", "Which"), list(run.environment.items()), "Environment")


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>" if lines else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> str:
    """Return a table that scrolls by itself where it is wider than the page; empty without rows."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td class=value>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{attribute(label)}"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )
