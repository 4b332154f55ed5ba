"""``lit-gelu report``: make one page of a run from its log folder: curves, findings, files."""

from dataclasses import replace
from pathlib import Path

from lit_gelu.cli.terminal import console_for_output, write_text
from lit_gelu.display import printable


def report(folder: str, *, output: str | None = None, title: str = "", json: str | None = None) -> int:
    """Make one page of a run from its log folder: curves, findings, files.

    The page is one HTML file that needs nothing from elsewhere. RunReport, a callback, knows more of a run than its
    folder does.

    in a shell:
      lit-gelu report lightning_logs/version_0
      lit-gelu report runs/digits_gelu/version_0 --output run.html
      lit-gelu report runs/demo --title "ReLU, then GELU" --json

    Args:
        folder: of a CSVLogger
        output: the page; default: log_report.html in that folder, beside RunReport's report.html
        title: of the page; default: the folder's name
        json: print JSON, and nothing else on standard output; or write it into a file
    """
    from lit_gelu.report import judged, page
    from lit_gelu.report.sources import read_log_folder

    run = read_log_folder(folder)
    run = judged(replace(run, title=title or run.title))
    target = output or str(Path(folder, "log_report.html"))
    write_text(page(run), target)
    if json is not None:
        write_text(run.to_json(), json)
    if json != "-":
        console = console_for_output(highlight=False, soft_wrap=True)
        for finding in run.findings:
            if finding.level != "good":
                where = f"{finding.where}: " if finding.where else ""
                console.print(printable(f"{finding.level}: {where}{finding.text}"))
        for sentence in run.missing:
            console.print(printable(f"missing: {sentence}"))
        console.print(printable(f"wrote {target}"))
    return 0
