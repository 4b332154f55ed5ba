"""``lit-gelu paper figures``: the paper's figures 1 to 7, from the runs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import jsonargparse

from lit_gelu.cli.main import EXIT_FAILURE
from lit_gelu.cli.options import command_parser
from gelu_paper.cli.results import add_results_arguments, check_names, read_results, results_folder
from lit_gelu.extras import need
from gelu_paper.errors import PaperError
from gelu_paper.figures.catalogue import FIGURES, draw, numbers_of
from gelu_paper.figures.drawing import PAPER_ARMS, FigureOptions, Format, write
from gelu_paper.records.run_record import RunRecord

DESCRIPTION = f"""\
The paper's figures, one file each, medians over the seeds: training curves dark, validation or test curves light.

figures: {", ".join(f"{number} {name}" for number, name in FIGURES.items())}
A figure without runs, or whose runs do not fit together, is not drawn; one that lacks some curves is. Standard error
says which. The exit code is 0 if nothing was missing and 1 otherwise.
"""
EXAMPLES = """\
examples:
  lit-gelu paper figures
  lit-gelu paper figures --only 2 timit --published
  lit-gelu paper figures --preset full --format pdf --output figures --band
  lit-gelu paper figures --arms gelu relu elu silu
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("paper figures", EXAMPLES, DESCRIPTION)
    add_results_arguments(parser)
    parser.add_argument("--only", nargs="+", metavar="FIGURE", default=None, help="numbers or names of figures")
    parser.add_argument("--format", choices=list(get_args(Format)), default="png", help="of the files")
    parser.add_argument("-o", "--output", metavar="FOLDER", default=None, help="by default the results' figures/")
    parser.add_argument("--published", action="store_true", help="mark points that were read from the paper's figures")
    parser.add_argument("--band", action="store_true", help="shade from the lowest to the highest run")
    parser.add_argument(
        "--arms", nargs="+", metavar="ARM", default=list(PAPER_ARMS), help="by default the paper's three"
    )
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu paper figures``."""
    numbers = numbers_of(arguments.only)
    need("matplotlib", extra="plots", what="lit-gelu paper figures")
    records = read_results(arguments) if set(numbers) != {1} else []
    options = FigureOptions(_arms(arguments.arms, records), arguments.published, arguments.band)
    folder = Path(arguments.output) if arguments.output else results_folder(arguments) / "figures"
    are_complete = [_make(number, records, options, folder, arguments.format) for number in numbers]
    return 0 if all(are_complete) else EXIT_FAILURE


def _arms(given: Sequence[str], records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the arms that are drawn, each once; refuse those that neither an experiment nor a record has."""
    recorded = {record.arm for record in records}
    check_names(arms=[arm for arm in given if arm not in recorded])
    return tuple(dict.fromkeys(given))


def _make(number: int, records: Sequence[RunRecord], options: FigureOptions, folder: Path, form: Format) -> bool:
    """Draw and write a figure, say what is missing, and return whether nothing is."""
    name = f"figure {number} ({FIGURES[number]})"
    try:
        drawing = draw(number, records, options)
    except PaperError as error:  # of its records: the others can be drawn
        sys.stderr.write(f"{name} is not drawn: {error}\n")
        return False
    if drawing.figure is None:
        sys.stderr.write(f"{name} is not drawn: there are no runs of it\n")
        return False
    path = folder / f"figure_{number}.{form}"
    write(drawing.figure, path, form)
    sys.stderr.write(f"wrote {path}\n")
    if drawing.missing:
        sys.stderr.write(f"{name} is incomplete: there are no runs of {'; '.join(drawing.missing)}\n")
    return not drawing.missing
