"""``lit-gelu activations plot``: draw f, f' and f'' of some activations side by side."""

import sys

import jsonargparse

from lit_gelu import activations
from lit_gelu.cli.activation_plots import plot
from lit_gelu.cli.activations.tables import selected
from lit_gelu.cli.options import add_import
from lit_gelu.cli.terminal import command_parser

HELP = "draw f, f' and f'' of some activations side by side"
EXAMPLES = """\
examples:
  lit-gelu activations plot gelu silu relu --output family.png
  lit-gelu activations plot "gelu*" -o gelu.svg --interval -3 3
  lit-gelu activations plot gelu "swish(beta=1.5)" -o slopes.pdf --derivatives 1
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser.

    Returns:
        The parser.
    """
    parser = command_parser("activations plot", HELP, EXAMPLES)
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
    """Run ``lit-gelu activations plot``.

    Args:
        arguments: What was parsed.

    Returns:
        The exit code.
    """
    infos = [activations.info(spec) for spec in selected(arguments.names)]
    plot(infos, arguments.output, tuple(arguments.interval), arguments.derivatives)
    sys.stderr.write(f"wrote {arguments.output}\n")
    return 0
