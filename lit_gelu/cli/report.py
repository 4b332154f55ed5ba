"""``lit-gelu report``: make one page of a run from its log folder: curves, findings, files."""

from dataclasses import replace
from pathlib import Path

from lit_gelu.cli.terminal import console_for_output, write_text
from lit_gelu.display import printable
from lit_gelu.errors import ArgumentError
from lit_gelu.files import is_file

FILE_NAME = "report.html"


def report(folder: str, *, output: str | None = None, title: str = "", json: str | None = None) -> int:
    """Make one page of a run from its log folder: curves, findings, files.

    The page is one HTML file that needs nothing from elsewhere, made of a log of up to 32 MB. RunReport, a callback,
    knows more of a run than its folder does.

    in a shell:
      lit-gelu report lightning_logs/version_0
      lit-gelu report runs/digits_gelu/version_0 --output run.html
      lit-gelu report runs/demo --title "ReLU, then GELU" --json

    Args:
        folder: of a CSVLogger
        output: the page; default: report.html in that folder, or log_report.html where RunReport's page is there
        title: of the page; default: the folder's name
        json: print JSON, and nothing else on standard output; or write it into a file
    """
    target = Path(folder, FILE_NAME) if output is None else Path(output)
    if target.suffix not in {".html", ".htm"}:
        raise ArgumentError(f"--output {target} is not accepted. Give a file that ends in .html.")
    from lit_gelu.report import judged, page
    from lit_gelu.report.sources import OF_FOLDER, read_log_folder

    is_there = output is None and is_file(target)
    if is_there and f'content="lit-gelu: {OF_FOLDER}' not in target.read_text("utf-8", errors="replace")[:1000]:
        target = target.with_name(f"log_{FILE_NAME}")  # the other is RunReport's, which says more
    run = read_log_folder(folder)
    run = judged(replace(run, title=title or run.title))
    write_text(page(run), str(target))
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
        if target.name != FILE_NAME and output is None:
            console.print(f"{FILE_NAME} is there already, was not made of this log, and stays: it may say more.")
        console.print(printable(f"wrote {target}"))
    return 0
