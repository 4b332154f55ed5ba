"""``lit-gelu paper table``: medians and spread of the runs, beside the paper's numbers."""

import sys
from typing import get_args

import jsonargparse

from lit_gelu.cli.options import command_parser
from gelu_paper.cli.results import NoRunsError, add_results_arguments, check_names, given_results, read_results
from lit_gelu.files import write_atomically
from gelu_paper.results.rendering import Format, render
from gelu_paper.results.rows import point_rows, result_rows

DESCRIPTION = """\
Medians and spread of the runs, beside the paper's numbers.

For each experiment, setting and activation: the learning rate that the validation set chose, and over its runs the
median test error at the evaluation with the lowest validation error (at the last one for CIFAR and the autoencoder).
With --of points, the median curves at the epochs where points of the paper's figures were read.
"""
EXAMPLES = """\
examples:
  lit-gelu paper table
  lit-gelu paper table --only mnist tweets --format markdown
  lit-gelu paper table --of points --only autoencoder
  lit-gelu paper table --preset full --format csv --output full.csv
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("paper table", EXAMPLES, DESCRIPTION)
    add_results_arguments(parser)
    parser.add_argument("--only", nargs="+", metavar="EXPERIMENT", default=None, help="names of experiments")
    parser.add_argument("--of", choices=["results", "points"], default="results", help="what the rows are")
    parser.add_argument(
        "--format", choices=list(get_args(Format)), default="text", help="csv has every number unrounded"
    )
    parser.add_argument("-o", "--output", metavar="FILE", default=None, help="by default standard output")
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu paper table``."""
    check_names(arguments.only or ())
    records = read_results(arguments)
    rows = (result_rows if arguments.of == "results" else point_rows)(records, arguments.only)
    if not rows:
        what = "with a measurement at a published point" if arguments.of == "points" else "of these experiments"
        present = ", ".join(dict.fromkeys(record.experiment for record in records))
        raise NoRunsError(f"There are no runs {what} in {str(given_results(arguments))!r}; it has runs of {present}.")
    table = render(rows, arguments.format)
    if arguments.output is None:
        sys.stdout.write(table)
        return 0
    with write_atomically(arguments.output) as temporary:
        temporary.write_text(table, encoding="utf-8", newline="")
    sys.stderr.write(f"wrote {arguments.output}\n")
    return 0
