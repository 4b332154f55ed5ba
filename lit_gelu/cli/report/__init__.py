"""``lit-gelu report``: make one page of a run from its log folder or a checkpoint: curves, findings, files."""

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from lit_gelu.cli.options import add_json, command_parser
from lit_gelu.cli.terminal import write_text
from lit_gelu.errors import LitGeluError
from lit_gelu.files import is_special

if TYPE_CHECKING:
    from lit_gelu.report import ReportedRun

EXAMPLES = """\
The page is one HTML file that needs nothing from elsewhere. It holds its content as JSON, too:
lit_gelu.report.read_report(path). RunReport, a callback, knows more of a run than its folder does.

examples:
  lit-gelu report lightning_logs/version_0
  lit-gelu report runs/digits_gelu/version_0/checkpoints/last.ckpt --output run.html
  lit-gelu report runs/demo --title "ReLU, then GELU" --json
"""
FILE_NAME = "report.html"


class ReportCommandError(LitGeluError, ValueError):
    """Arguments that no page can be made with."""


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    parser = command_parser("report", EXAMPLES)
    parser.add_argument("source", type=str, metavar="LOGDIR|CKPT", help="the folder of a logger, or a checkpoint")
    parser.add_argument(
        "--output", type=str | None, default=None, metavar="FILE", help=f"the page; default: {FILE_NAME} in that folder"
    )
    parser.add_argument("--title", type=str, default="", help="of the page; default: the folder's or file's name")
    add_json(parser)
    return parser


def run(arguments: Namespace) -> int:
    """Write the page; return 0."""
    source = Path(arguments.source)
    target = _target(source, arguments.output)
    from lit_gelu.cli.report.gathering import run_of_checkpoint, run_of_folder
    from lit_gelu.report import judged, page, to_json

    found = judged((run_of_checkpoint if source.is_file() else run_of_folder)(source, arguments.title))
    write_text(page(found), str(target))
    if arguments.json is not None:
        write_text(to_json(found), arguments.json)
    if arguments.json != "-":
        _print(found, target)
    return 0


def _target(source: Path, output: str | None) -> Path:
    """Return where to write; refuse what is there in no form."""
    try:
        is_file, is_folder = source.is_file(), source.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or holds NUL
        raise ReportCommandError(f"{str(source)[:200]!r} can be no file or folder: {error}.") from error
    if not (is_file or is_folder):
        fault = "is neither a file nor a folder" if is_special(source) else "does not exist"
        raise ReportCommandError(
            f"{str(source)!r} {fault}. Give the folder of a logger, such as lightning_logs/version_0, or a checkpoint."
        )
    if output is not None:
        if Path(output).suffix not in {".html", ".htm"}:
            raise ReportCommandError(f"--output {output} is not accepted. Give a file that ends in .html.")
        return Path(output)
    return source / FILE_NAME if is_folder else source.with_name(f"{source.stem}.{FILE_NAME}")


def _print(found: "ReportedRun", target: Path) -> None:
    """Say where the page is, and what it found."""
    from rich.text import Text

    from lit_gelu.cli.terminal import console_for_output

    console = console_for_output(highlight=False, soft_wrap=True)
    for finding in found.findings:
        where = f"{finding.where}: " if finding.where else ""
        if finding.level != "good":
            console.print(Text(f"{finding.level}: {where}{finding.text}"))
    for sentence in found.missing:
        console.print(Text(f"missing: {sentence}"))
    console.print(Text(f"wrote {target}"))
