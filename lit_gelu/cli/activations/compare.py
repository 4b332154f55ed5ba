"""``lit-gelu activations compare``: how far two activations lie apart in f, f' and f'', and where."""

import json
import sys
from functools import partial

import jsonargparse
import torch
from rich.table import Table
from torch import Tensor

from lit_gelu import activations
from lit_gelu.activations import ActivationComparison
from lit_gelu.activations.analysis.drawing import TITLES, panels
from lit_gelu.activations.functional import derivative
from lit_gelu.activations.numerics.sampling import both_sides
from lit_gelu.cli.activations.plot import save
from lit_gelu.cli.options import add_import, add_json, command_parser
from lit_gelu.cli.terminal import console_for_output, write_text

EXAMPLES = """\
examples:
  lit-gelu activations compare gelu gelu_tanh
  lit-gelu activations compare silu hard_swish --interval -6 6 --plot difference.png
  lit-gelu activations compare gelu "swish(beta=1.702)" --json
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("activations compare", EXAMPLES)
    add_import(parser)
    parser.add_argument("a", type=str, metavar="A", help="a spec")
    parser.add_argument("b", type=str, metavar="B", help="another")
    parser.add_argument(
        "--interval", nargs=2, type=float, metavar=("FROM", "TO"), default=[-12.0, 12.0], help="where to compare"
    )
    parser.add_argument("--plot", metavar="FILE", default=None, help="draw the differences, too (.png, .svg or .pdf)")
    add_json(parser, beside_names=True)
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu activations compare``."""
    comparison = activations.compare(arguments.a, arguments.b, tuple(arguments.interval))
    if arguments.plot is not None:
        draw_differences(comparison, arguments.plot)
        sys.stderr.write(f"wrote {arguments.plot}\n")
    if arguments.json is not None:
        write_text(json.dumps(comparison.to_dict(), indent=2), arguments.json)
    else:
        console_for_output().print(differences(comparison))
    return 0


def differences(comparison: ActivationComparison) -> Table:
    """Return a table of the largest differences of two activations."""
    low, high = comparison.interval
    table = Table(title=f"{comparison.a} and {comparison.b} on [{low:g}, {high:g}]", title_justify="left")
    for column in ("of", "largest difference", "at"):
        table.add_column(column, overflow="fold")
    for name, row in {"f": comparison.value, "f'": comparison.slope, "f''": comparison.curvature}.items():
        places = [f"{x:.10g}" for x in row.places] + [f"all of [{a:.10g}, {b:.10g}]" for a, b in row.stretches]
        table.add_row(name, f"{row.largest:.15g}", ", ".join(places))
    return table


def draw_differences(comparison: ActivationComparison, path: str) -> None:
    """Draw the differences of two activations, and mark where they are largest."""

    def difference(x: Tensor, order: int) -> Tensor:
        return (derivative(comparison.a, x, order) - derivative(comparison.b, x, order)).detach()

    name = f"{comparison.a} - {comparison.b}"
    functions = [partial(difference, order=order) for order in (0, 1, 2)]
    titles = [f"difference of {title}" for title in TITLES]
    figure = panels([(name, functions)], comparison.interval, (0, 1, 2), titles)
    rows = (comparison.value, comparison.slope, comparison.curvature)
    for order, (axes, row) in enumerate(zip(figure.axes, rows, strict=True)):
        for place in row.places:
            sides = difference(torch.tensor(both_sides([place]), dtype=torch.float64), order)
            axes.plot([place], [sides[sides.abs().argmax()].item()], "o", markersize=4, color="0.3")
        axes.set_title(f"{axes.get_title()}: at most {row.largest:.4g}")
    save(figure, path)
