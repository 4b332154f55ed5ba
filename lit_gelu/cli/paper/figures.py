"""``lit-gelu paper figures``: the paper's figures 1 to 7, from the runs."""

import sys
from pathlib import Path
from typing import get_args

import jsonargparse

from lit_gelu.cli.main import EXIT_FAILURE
from lit_gelu.cli.options import command_parser
from lit_gelu.cli.paper.results import add_results_arguments, read_results, results_folder
from lit_gelu.extras import need
from lit_gelu.paper.figures.catalogue import FIGURES, draw, numbers_of
from lit_gelu.paper.figures.drawing import PAPER_ARMS, Drawing, FigureOptions, Format, write

DESCRIPTION = f"""\
The paper's figures, one file each, medians over the seeds: training curves dark, validation or test curves light.

figures: {", ".join(f"{number} {name}" for number, name in FIGURES.items())}
A figure without runs is not drawn, one that lacks some curves is; standard error says which. The exit code is 0 if
nothing was missing and 1 otherwise.
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
    needs_runs = set(numbers) != {1}
    records = read_results(arguments) if needs_runs else []
    options = FigureOptions(tuple(dict.fromkeys(arguments.arms)), arguments.published, arguments.band)
    folder = Path(arguments.output) if arguments.output else results_folder(arguments) / "figures"
    drawings = [draw(number, records, options) for number in numbers]
    for drawing in drawings:
        if drawing.figure is not None:
            path = folder / f"figure_{drawing.number}.{arguments.format}"
            write(drawing.figure, path, arguments.format)
            sys.stderr.write(f"wrote {path}\n")
        _report_missing(drawing)
    return EXIT_FAILURE if any(drawing.missing for drawing in drawings) else 0


def _report_missing(drawing: Drawing) -> None:
    """Say which runs a figure lacks."""
    if not drawing.missing:
        return
    name = f"figure {drawing.number} ({FIGURES[drawing.number]})"
    if drawing.figure is None:
        sys.stderr.write(f"{name} is not drawn: there are no runs of it\n")
    else:
        sys.stderr.write(f"{name} is incomplete: there are no runs of {'; '.join(drawing.missing)}\n")
