"""``lit-gelu activations``: list the registered activations, describe, compare or plot them.

Without a sub-command, one name is shown and several are listed.
"""

import sys

import jsonargparse

from lit_gelu import activations
from lit_gelu.cli.activations import listing, show
from lit_gelu.cli.activations.plot import save
from lit_gelu.cli.activations.tables import selected
from lit_gelu.cli.options import add_import, add_json, command_parser

DESCRIPTION = """\
List, describe, compare or plot activations. Without a sub-command, one NAME is shown and several are listed.
"""
EXAMPLES = """\
examples:
  lit-gelu activations                                   all of them
  lit-gelu activations "*elu"                            those whose name matches
  lit-gelu activations "swish(beta=1.5)"                 everything that is known of one
  lit-gelu activations gelu silu relu --plot family.png  draw f, f' and f'' of three
  lit-gelu activations gelu --json                       plain data on standard output
  lit-gelu activations compare gelu gelu_tanh            4.73e-4 at +-2.69894
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser of ``lit-gelu activations`` without a sub-command."""
    parser = command_parser("activations", EXAMPLES, DESCRIPTION)
    add_import(parser)
    parser.add_argument("names", nargs="*", help="patterns over names, or specs; all by default")
    parser.add_argument("--plot", metavar="FILE", default=None, help="draw f, f' and f'' (.png, .svg or .pdf)")
    parser.add_argument(
        "--interval", nargs=2, type=float, metavar=("FROM", "TO"), default=[-4.0, 4.0], help="of the plot"
    )
    add_json(parser, beside_names=True)
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Show, list or plot; return 0."""
    names = selected(arguments.names or ["*"])
    if arguments.plot is None:
        return show.run(arguments) if len(names) == 1 else listing.run(arguments)
    save(activations.plot(*names, interval=tuple(arguments.interval)), arguments.plot)
    sys.stderr.write(f"wrote {arguments.plot}\n")
    return 0
