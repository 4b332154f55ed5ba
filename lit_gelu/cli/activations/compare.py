"""``lit-gelu activations compare``: how far two activations lie apart in f, f' and f'', and where."""

import json
import sys

import jsonargparse

from lit_gelu import activations
from lit_gelu.cli.activation_plots import plot_comparison
from lit_gelu.cli.activations.tables import differences
from lit_gelu.cli.options import add_import
from lit_gelu.cli.terminal import command_parser, console_for_output

HELP = "the largest differences of two activations in f, f' and f'', and where they occur"
EXAMPLES = """\
examples:
  lit-gelu activations compare gelu gelu_tanh
  lit-gelu activations compare silu hard_swish --interval -6 6 --plot difference.png
  lit-gelu activations compare gelu "swish(beta=1.702)" --json
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser.

    Returns:
        The parser.
    """
    parser = command_parser("activations compare", HELP, EXAMPLES)
    add_import(parser)
    parser.add_argument("a", type=str, metavar="A", help="a spec")
    parser.add_argument("b", type=str, metavar="B", help="another")
    parser.add_argument(
        "--interval", nargs=2, type=float, metavar=("FROM", "TO"), default=[-12.0, 12.0], help="where to compare"
    )
    parser.add_argument("--plot", metavar="FILE", default=None, help="draw the differences, too (.png, .svg or .pdf)")
    parser.add_argument("--json", action="store_true", help="print plain data instead of a table")
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu activations compare``.

    Args:
        arguments: What was parsed.

    Returns:
        The exit code.
    """
    comparison = activations.compare(arguments.a, arguments.b, tuple(arguments.interval))
    if arguments.plot is not None:
        plot_comparison(comparison, arguments.plot)
        sys.stderr.write(f"wrote {arguments.plot}\n")
    if arguments.json:
        sys.stdout.write(json.dumps(comparison.to_dict(), indent=2) + "\n")
    else:
        console_for_output().print(differences(comparison))
    return 0
