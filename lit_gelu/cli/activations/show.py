"""``lit-gelu activations show``: everything that is known of each activation."""

import json
import sys

import jsonargparse

from lit_gelu import activations
from lit_gelu.cli.activations.tables import as_plain_data, details, selected
from lit_gelu.cli.options import add_import
from lit_gelu.cli.terminal import command_parser, console_for_output

HELP = "everything that is known of each activation"
EXAMPLES = """\
examples:
  lit-gelu activations show gelu
  lit-gelu activations show "swish(beta=1.5)" hard_swish
  lit-gelu activations show "gelu*" --json
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser.

    Returns:
        The parser.
    """
    parser = command_parser("activations show", HELP, EXAMPLES)
    add_import(parser)
    parser.add_argument("names", nargs="+", help="specs, or patterns over names")
    parser.add_argument("--json", action="store_true", help="print plain data instead of a table")
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu activations show``.

    Args:
        arguments: What was parsed.

    Returns:
        The exit code.
    """
    infos = [activations.info(spec) for spec in selected(arguments.names)]
    if arguments.json:
        sys.stdout.write(json.dumps([as_plain_data(info) for info in infos], indent=2) + "\n")
    else:
        console_for_output().print(*(details(info) for info in infos))
    return 0
