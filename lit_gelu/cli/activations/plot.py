"""``lit-gelu activations plot``: draw f, f' and f'' of some activations side by side."""

import sys
from typing import TYPE_CHECKING

import jsonargparse

from lit_gelu import activations
from lit_gelu.cli.activations.tables import selected
from lit_gelu.cli.options import add_import, command_parser
from lit_gelu.errors import LitGeluError
from lit_gelu.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLES = """\
examples:
  lit-gelu activations plot gelu silu relu --output family.png
  lit-gelu activations plot "gelu*" -o gelu.svg --interval -3 3
  lit-gelu activations plot gelu "swish(beta=1.5)" -o slopes.pdf --derivatives 1
"""


class PlotError(LitGeluError, ValueError):
    """A plot that cannot be written as asked."""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("activations plot", EXAMPLES)
    add_import(parser)
    parser.add_argument("names", nargs="+", help="specs, or patterns over names; at most ten activations")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the plot (.png, .svg or .pdf)")
    parser.add_argument(
        "--interval", nargs=2, type=float, metavar=("FROM", "TO"), default=[-4.0, 4.0], help="where to draw"
    )
    parser.add_argument(
        "--derivatives", nargs="+", type=int, default=[0, 1, 2], help="which to draw; 0 is f itself, all by default"
    )
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu activations plot``."""
    names = selected(arguments.names)
    figure = activations.plot(*names, interval=tuple(arguments.interval), derivatives=arguments.derivatives)
    save(figure, arguments.output)
    sys.stderr.write(f"wrote {arguments.output}\n")
    return 0


def save(figure: "Figure", path: str) -> None:
    """Write a figure, whole or not at all."""
    with write_atomically(path) as temporary:
        try:
            figure.savefig(temporary, dpi=150)
        except ValueError as error:
            raise PlotError(f"Cannot write {path!r}: {error}. Use .png, .svg or .pdf.") from error
