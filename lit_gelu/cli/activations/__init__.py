"""``lit-gelu activations``: list the registered activations, describe, compare or plot them."""

import json
import sys

import jsonargparse

from lit_gelu import activations
from lit_gelu.cli.activation_plots import plot
from lit_gelu.cli.activations.tables import as_plain_data, details, overview, selected
from lit_gelu.cli.options import add_import
from lit_gelu.cli.terminal import command_parser, console_for_output

HELP = "list the registered activations, describe, compare or plot them"
DESCRIPTION = """\
List, describe, compare or plot activations.

sub-commands (lit-gelu activations SUB-COMMAND --help):
  list [PATTERN ...]       a table of those whose names match
  show NAME ...            everything that is known of each
  compare A B              how far two lie apart in f, f' and f'', and where
  plot NAME ... -o FILE    draw f, f' and f''
Without a sub-command, one NAME is shown and several are listed.
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
    """Return the parser of ``lit-gelu activations`` without a sub-command.

    Returns:
        The parser.
    """
    parser = command_parser("activations", DESCRIPTION, EXAMPLES)
    add_import(parser)
    parser.add_argument("names", nargs="*", help="patterns over names, or specs; all by default")
    parser.add_argument("--plot", metavar="FILE", default=None, help="draw f, f' and f'' (.png, .svg or .pdf)")
    parser.add_argument(
        "--interval", nargs=2, type=float, metavar=("FROM", "TO"), default=[-4.0, 4.0], help="of the plot"
    )
    parser.add_argument("--json", action="store_true", help="print plain data instead of a table")
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu activations``.

    Args:
        arguments: What was parsed.

    Returns:
        The exit code.
    """
    names = selected(arguments.names or ["*"])
    infos = [activations.info(name) for name in names]
    if arguments.plot is not None:
        plot(infos, arguments.plot, tuple(arguments.interval))
        sys.stderr.write(f"wrote {arguments.plot}\n")
    elif arguments.json:
        sys.stdout.write(json.dumps([as_plain_data(info) for info in infos], indent=2) + "\n")
    else:
        console_for_output().print(details(infos[0]) if len(infos) == 1 else overview(names, infos))
    return 0
